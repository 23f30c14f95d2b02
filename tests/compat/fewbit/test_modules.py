"""The activation modules of torch_cgx.compat.fewbit, against torch.nn's."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from tests.activations.few_bit_cases import inputs
from torch_cgx import activations
from torch_cgx.activations.few_bit.derivatives import STEPS
from torch_cgx.compat import fewbit
from torch_cgx.compat.fewbit.modules import activations as modules

NAMES = sorted(set(modules.__all__) - {"FewBitActivation", "Stepwise"})
GIVEN: dict[str, tuple[Any, ...]] = {
    "Threshold": (0.5, -1.0),
    "CELU": (2.0,),
    "LeakyReLU": (0.2,),
    "Hardtanh": (-2.0, 0.5),
    "Softplus": (2.0, 5.0),
}


def test_all_21_are_exported() -> None:
    assert len(NAMES) == 21
    for name in NAMES:
        assert getattr(fewbit, name) is getattr(modules, name)


@pytest.mark.parametrize("name", NAMES)
def test_a_module_computes_torchs_values(name: str) -> None:
    given = GIVEN.get(name, ())
    made, plain = getattr(fewbit, name)(*given), getattr(nn, name)(*given)
    assert isinstance(made, type(plain))
    x = inputs(torch.float32, 300).requires_grad_()
    y = made(x)
    assert torch.equal(y, plain(x))
    (found,) = torch.autograd.grad(y.sum(), x)
    step = made._function.__name__ in STEPS
    assert made.bits == (1 if step else 3)
    ours = getattr(activations, name)(*given)
    assert torch.equal(found, torch.autograd.grad(ours(x).sum(), x)[0])
    for copied in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert torch.equal(copied(x), y) and repr(copied) == repr(made)
    assert f"bits={made.bits})" in repr(made)
    names = list(inspect.signature(getattr(fewbit, name)).parameters)
    assert names[-1] == "bits" and not {"inplace", "approximate"} & set(names)


def test_what_constructors_refuse() -> None:
    assert repr(fewbit.GELU(bits=3)) == "GELU(bits=3)"
    assert fewbit.ReLU(bits=1).bits == 1
    for wrong, error in (
        (lambda: fewbit.GELU(bits=7), KeyError),
        (lambda: fewbit.GELU(bits=7), ValueError),
        (lambda: fewbit.GELU(bits=2.0), TypeError),  # type: ignore[arg-type]
        (lambda: fewbit.GELU(3), TypeError),
        (lambda: fewbit.GELU(approximate="tanh"), TypeError),
        (lambda: fewbit.ReLU(bits=2), ValueError),
        (lambda: fewbit.ReLU(True), TypeError),
        (lambda: fewbit.Threshold(1.0), TypeError),
    ):
        with pytest.raises(error):
            wrong()


def test_stepwise_keeps_its_table_in_the_state_dict() -> None:
    made = fewbit.Stepwise(torch.tensor([-9.0, 0.0, 9.0]), torch.tensor([0.5, 2.0]))
    x = torch.tensor([-2.0, 3.0], requires_grad=True)
    assert made(x).tolist() == [-1.0, 6.0]
    other = fewbit.Stepwise([1.0], [0.0, 0.0])
    assert other(x).tolist() == [0.0, 0.0]
    other.load_state_dict(made.state_dict())
    y = other(x)
    assert y.tolist() == [-1.0, 6.0]
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0.5, 2.0]
    assert copy.deepcopy(other).float()(x).tolist() == [-1.0, 6.0]
    assert set(made.state_dict()) == {"borders", "levels"}
    shifted = fewbit.Stepwise([1.0], [1.0, 0.0], True, 1.0)
    assert shifted(torch.tensor([-3.0, 1.5])).tolist() == [-1.0, 0.5]


def test_a_compiled_model() -> None:
    model = nn.Sequential(nn.Linear(4, 8), fewbit.GELU(), fewbit.ReLU(), fewbit.Softplus(bits=2))
    x = torch.randn(5, 4)
    found: Any = torch.compile(model, backend="aot_eager", fullgraph=True)(x)
    found.sum().backward()
    compiled = [one.grad.clone() for one in model.parameters() if one.grad is not None]
    model.zero_grad()
    model(x).sum().backward()
    for one, parameter in zip(compiled, model.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad)


def test_a_table_of_stepwise_keeps_its_type() -> None:
    """These borders are one number in bfloat16."""
    made = fewbit.Stepwise([1.0, 1.001, 1.002], [0.0, 0.25, 0.75, 1.0])
    x = torch.linspace(0.99, 1.01, 40)
    expected = made(x)
    for change in (lambda m: m.bfloat16(), lambda m: m.half(), lambda m: m.to(torch.float32)):
        changed = change(copy.deepcopy(nn.Sequential(made, nn.Linear(2, 2))))
        assert changed[0].borders.dtype == torch.float64
        assert torch.equal(changed[0](x), expected)
    assert made.to("meta").borders.device.type == "meta"


def test_modules_has_the_names_of_the_package() -> None:
    for name in [*NAMES, "Stepwise", "LinearGRP", "LinearCRS", "RandomizedLinear"]:
        assert getattr(fewbit.modules, name) is getattr(fewbit, name)
