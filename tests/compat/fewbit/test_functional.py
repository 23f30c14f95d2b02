"""The activation functions of torch_cgx.compat.fewbit, their tables, and the store of tables."""

from __future__ import annotations

import inspect
import math
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.activations.few_bit_cases import FEWBIT_GELU, inputs
from tests.activations.kept import kept
from torch_cgx import activations
from torch_cgx.activations.few_bit.derivatives import CONTINUOUS, STEPS
from torch_cgx.compat import fewbit
from torch_cgx.compat.fewbit.store import NoTable, StepwiseStore

GIVEN: dict[str, tuple[Any, ...]] = {"threshold": (0.5, -1.0)}


@pytest.fixture(autouse=True)
def fresh_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[StepwiseStore]:
    made = StepwiseStore()
    monkeypatch.setattr(fewbit.functional.activations, "store", made)
    yield made


def _gradient(function: Any, x: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    x = x.detach().clone().requires_grad_()
    (found,) = torch.autograd.grad(function(x, *args, **options).sum(), x)
    return found


@pytest.mark.parametrize("name", [*STEPS, *CONTINUOUS])
def test_values_are_torchs_and_gradients_ours(name: str) -> None:
    x, given = inputs(torch.float32, 300), GIVEN.get(name, ())
    function = getattr(fewbit.functional, name)
    ours, torchs = getattr(activations.functional, name), getattr(F, name, None)
    assert torch.equal(function(x, *given), (torchs or getattr(torch, name))(x, *given))
    assert torch.equal(_gradient(function, x, *given), _gradient(ours, x, *given))
    parameters = inspect.signature(function).parameters
    assert not {"inplace", "approximate"} & set(parameters)
    if name in CONTINUOUS:
        two = _gradient(function, x, *given, bits=2)
        assert torch.equal(two, _gradient(ours, x, *given, bits=2))
        assert not torch.equal(two, _gradient(function, x, *given))
        assert list(parameters)[-3:] == ["bits", "borders", "values"]


def test_parameters() -> None:
    x = inputs(torch.float32, 300)
    found = fewbit.functional.softplus(x, 2.0, threshold=3.0, bits=4)
    assert torch.equal(found, F.softplus(x, 2.0, 3.0))
    assert torch.equal(fewbit.functional.elu(x, 0.5), F.elu(x, 0.5))
    exact = _gradient(F.softplus, x, 2.0, 3.0)
    assert float((_gradient(fewbit.functional.softplus, x, 2.0, 3.0) - exact).abs().max()) < 0.1
    with pytest.raises(TypeError):
        fewbit.functional.gelu(x, 3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="int64"):
        fewbit.functional.gelu(torch.arange(3))


def test_v7_fewbits_own_table_from_the_store(fresh_store: StepwiseStore) -> None:
    fresh_store.add("gelu", 3, ([-100, *FEWBIT_GELU.borders, 100], FEWBIT_GELU.levels))
    x = torch.tensor([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0])
    wanted = [-1.93991e-4, -0.0882791, 0.1256838, 0.3723144, 0.8744505, 1.0883480, 1.0001949]
    for found in (_gradient(fewbit.functional.gelu, x), _gradient(fewbit.GELU(), x)):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=6e-6)
    other = _gradient(fewbit.functional.gelu, x, bits=2)
    assert torch.equal(other, _gradient(activations.functional.gelu, x, bits=2))


def test_v8_at_borders() -> None:
    third = 1 / 3
    borders = torch.tensor([-math.inf, -3, -2, -1, 0, 1, 2, 3, 100])
    values = torch.tensor([0, -third, 0, third, 2 * third, 1, 4 * third, 1])
    given = [-3, -2, -1, 0, 1, 2, 3, 3.0000002, math.nan, math.inf, -math.inf]
    found = _gradient(
        fewbit.functional.hardswish, torch.tensor(given), borders=borders, values=values
    )
    # A NaN has the gradient NaN; in FewBit the last level.
    wanted = [0, -third, 0, third, 2 * third, 1, 4 * third, 1, math.nan, 1, 0]
    np.testing.assert_allclose(found, wanted, atol=1e-7)


def test_v9_and_errors_of_tables() -> None:
    gelu: Any = fewbit.functional.gelu
    x = torch.tensor([1.0, 2.0])
    borders, values = torch.tensor([-9.0, 0.0, 9.0]), torch.tensor([0.25, 0.75])
    assert _gradient(gelu, x, borders=borders, values=values).tolist() == [0.75, 0.75]
    assert _gradient(gelu, -x, borders=borders, values=values).tolist() == [0.25, 0.25]
    for wrong, says in (
        ({"bits": 3, "borders": borders, "values": values}, "bits=3 with borders and values"),
        ({"bits": 3, "values": values}, "bits=3 with values"),
        ({"borders": torch.tensor([0.0])}, "values is missing"),
        ({"values": values}, "borders is missing"),
        ({"borders": torch.tensor([0.0]), "values": values}, "1 borders for 2 values; allowed: 3"),
        ({"borders": borders[None], "values": values}, r"\(1, 3\)"),
    ):
        with pytest.raises(ValueError, match=says):
            gelu(x, **wrong)
    falling: Any = [-9, 1, 0, 9]
    with pytest.raises(ValueError, match="rising"):
        gelu(x, borders=falling, values=[1, 2, 3])
    for kind in (KeyError, ValueError, NoTable):
        with pytest.raises(kind, match="7 bits for 'gelu'; allowed: 1, 2, 3, 4"):
            gelu(x, bits=7)
    for wrong_bits in (2.0, "2", True):
        with pytest.raises(TypeError, match="bits="):
            gelu(x, bits=wrong_bits)


@pytest.mark.parametrize(("bits", "size"), [(1, 125), (3, 375), (None, 375)])
def test_v10_bytes(bits: int | None, size: int) -> None:
    x = torch.randn(1000, requires_grad=True)
    _, found = kept(lambda: fewbit.functional.gelu(x, bits=bits))
    assert found == size


def test_the_store(fresh_store: StepwiseStore, tmp_path: Any) -> None:
    store = fresh_store
    assert len(store) == 52 == len(list(store.items()))
    borders, levels = store.get("gelu", 3)
    assert borders.dtype == levels.dtype == torch.float64
    assert len(borders) == 9 and len(levels) == 8 and borders[0] == -100 and borders[-1] == 100
    x = torch.randn(300)
    again = _gradient(fewbit.functional.gelu, x, borders=borders, values=levels)
    assert torch.equal(again, _gradient(fewbit.functional.gelu, x))
    single = store.get("gelu", 3, "cpu", torch.float32)
    assert single[0].dtype == torch.float32 and store.get("gelu", 3, dtype=torch.float32) is single
    assert ("gelu", 3, torch.device("cpu"), torch.float32) in dict(store.items(cached=True))
    arrays: dict[str, Any] = {
        "gelu03-borders": np.array([-100, *FEWBIT_GELU.borders, 100]),
        "gelu03-levels": np.array(FEWBIT_GELU.levels),
        "mine01-borders": np.array([-100, 0.5, 100]),
        "mine01-levels": np.array([0, 2.0]),
    }
    np.savez(tmp_path / "some.npz", **arrays)
    store.load(tmp_path / "some.npz")
    assert len(store) == 53 and store.get("mine", 1)[1].tolist() == [0, 2]
    assert store.get("gelu", 3, dtype=torch.float32)[1].tolist() != single[1].tolist()
    np.testing.assert_allclose(
        _gradient(fewbit.functional.gelu, torch.tensor([0.5])), [0.874451], atol=1e-6
    )
    for missing in (("gelu", 5), ("none", 3)):
        with pytest.raises(KeyError, match=missing[0]):
            store.get(*missing)
    with pytest.raises(ValueError, match="allowed: 1"):
        store.add("gelu", 3, ([-100, 0, 100], [0, 1]))
    with pytest.raises(FileNotFoundError):
        store.load(tmp_path / "other.npz")
    assert len(store) == 53


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "softsign", "tanhshrink"])
def test_tables_over_magnitudes_are_unfolded(name: str) -> None:
    x = torch.randn(500) * 3
    borders, levels = fewbit.functional.activations.store.get(name, 3)
    assert len(borders) == len(levels) + 1 and len(levels) in (15, 13)
    found = _gradient(getattr(fewbit.functional, name), x, borders=borders, values=levels)
    assert torch.equal(found, _gradient(getattr(fewbit.functional, name), x))


def test_a_table_over_magnitudes_with_a_border_at_0(fresh_store: StepwiseStore) -> None:
    table = activations.Table((0.0, 1.0), (5.0, 2.0, 3.0), parity=True)
    fresh_store.add("tanh", 2, table)
    assert [part.tolist() for part in fresh_store.get("tanh", 2)] == [[-100, -1, 1, 100], [3, 2, 3]]
    fresh_store.add("tanh", 1, activations.Table((0.0,), (5.0, 2.0), parity=True))
    assert [part.tolist() for part in fresh_store.get("tanh", 1)] == [[-100, 100], [2]]


def test_stepwise_is_hardtanh_relu_and_leaky_relu() -> None:
    stepwise = fewbit.functional.stepwise
    x = inputs(torch.float32, 2000)
    x[:3] = torch.tensor([math.inf, -math.inf, 0.3])
    for borders, levels, parity, function in (
        ([-1.0, 1.0], [0.0, 1.0, 0.0], None, F.hardtanh),
        ([1.0], [1.0, 0.0], True, F.hardtanh),
        ([-9.0, 0.0, 9.0], [0.0, 1.0], False, F.relu),
        ([0.0], [0.01, 1.0], None, F.leaky_relu),
    ):
        torch.testing.assert_close(stepwise(x, borders, levels, parity), function(x))
        inner = x[(x.abs() != 1) & (x != 0)]
        found = _gradient(stepwise, inner, torch.tensor(borders), torch.tensor(levels), parity)
        torch.testing.assert_close(found, _gradient(function, inner))
    shifted = stepwise(x, [-1.0, 1.0], [0.0, 1.0, 0.0], shift=2.5)
    torch.testing.assert_close(shifted, F.hardtanh(x - 2.5))
    leaf = torch.randn(800, requires_grad=True)
    y, size = kept(lambda: stepwise(leaf, [-1.0, 1.0], [0.0, 1.0, 0.0], shift=2.5))
    assert size == 100 and y.requires_grad


@pytest.mark.parametrize("parity", [False, True])
def test_stepwise_is_the_integral_of_its_levels(parity: bool) -> None:
    """By a sum of NumPy over a fine grid."""
    borders = [0.5, 1.25, 3.0] if parity else [-2.0, -0.5, 1.25]
    levels = [1.5, -0.5, 2.0, 0.25]
    grid = np.linspace(-4, 4, 80001)
    place = np.abs(grid) if parity else grid
    middle = np.array(levels)[np.searchsorted(borders, 0.5 * (place[1:] + place[:-1]))]
    values = np.concatenate([[0], np.cumsum(middle * np.diff(grid))])
    values -= values[40000]
    x = torch.from_numpy(grid).requires_grad_()
    found = fewbit.functional.stepwise(x, borders, levels, parity)
    np.testing.assert_allclose(found.detach(), values, atol=1e-3)
    assert found[40000].item() == 0
    found.sum().backward()
    assert x.grad is not None
    wanted = np.array(levels)[np.searchsorted(borders, place)]
    assert np.array_equal(x.grad.numpy(), wanted)


def test_stepwise_refuses() -> None:
    x = torch.zeros(3)
    for borders, levels in (
        ([0.0, 1.0], [1.0, 2.0]),
        ([1.0, 0.0], [1.0, 2.0, 3.0]),
        ([0.0], [1.0]),
    ):
        with pytest.raises(ValueError):
            fewbit.functional.stepwise(x, borders, levels)
        with pytest.raises(ValueError):
            fewbit.Stepwise(borders, levels)
    with pytest.raises(ValueError, match="allowed: 2 to 16"):
        fewbit.Stepwise(range(16), range(17))
    with pytest.raises(ValueError, match="parity"):
        fewbit.functional.stepwise(x, [-1.0], [1.0, 2.0], True)


def test_the_error_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(NoTable("none of 7 bits")))
    assert isinstance(error, NoTable) and str(error) == "none of 7 bits"
