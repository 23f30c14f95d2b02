"""Modules of the few-bit activation functions."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch

from tests.activations.few_bit_cases import CASES, inputs
from torch_cgx.activations import Table, functional
from torch_cgx.activations.few_bit import modules as modules
from torch_cgx.activations.few_bit.derivatives import STEPS

CLASS_OF = {
    "celu": "CELU",
    "elu": "ELU",
    "gelu": "GELU",
    "leaky_relu": "LeakyReLU",
    "logsigmoid": "LogSigmoid",
    "relu": "ReLU",
    "relu6": "ReLU6",
    "selu": "SELU",
    "silu": "SiLU",
}


@pytest.mark.parametrize(("name", "arguments"), CASES, ids=str)
def test_modules_are_torchs_with_fewer_bits(name: str, arguments: dict[str, Any]) -> None:
    class_name = CLASS_OF.get(name, name.capitalize())
    made = getattr(modules, class_name)(**arguments)
    theirs = getattr(torch.nn, class_name)
    assert isinstance(made, theirs) and made.state_dict() == {}
    ours, x = (inputs(torch.float32).requires_grad_() for _ in range(2))
    y = made(ours)
    assert torch.equal(y, theirs(**arguments)(x))
    y.sum().backward()
    getattr(functional, name)(x, **arguments).sum().backward()
    assert ours.grad is not None and x.grad is not None and torch.equal(ours.grad, x.grad)
    assert f"bits={made.bits}" in repr(made)
    assert made.bits == (1 if name in STEPS else 3)
    for again in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert repr(again) == repr(made) and torch.equal(again(x), y)


def test_modules_say_their_signature_and_refuse() -> None:
    assert list(inspect.signature(modules.GELU).parameters) == ["approximate", "bits", "table"]
    assert list(inspect.signature(modules.Tanh).parameters) == ["bits", "table"]
    table = Table((0.0,), (0.0, 1.0))
    assert modules.GELU(table=table).bits == 1 and modules.Threshold(1.0, 2.0).bits == 1
    assert modules.GELU(bits=2).bits == 2
    with pytest.raises(ValueError, match="GELU: bits=5; allowed: 1 to 4"):
        modules.GELU(bits=5)
    with pytest.raises(ValueError, match="ReLU: bits=3; allowed: 1"):
        modules.ReLU(bits=3)
    with pytest.raises(TypeError, match="unexpected keyword"):
        modules.GELU(bytes=3)
    assert len(modules.MODULES) == 21


def test_a_module_trains_through_ddp_free_code_without_communicators() -> None:
    """Nothing of torch.distributed is set up, and no MPI module is loaded."""
    import subprocess
    import sys

    code = (
        "import sys, torch, threading\n"
        "from torch_cgx import activations\n"
        "x = torch.randn(10, requires_grad=True)\n"
        "activations.functional.gelu(x).sum().backward()\n"
        "model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU())\n"
        "activations.memory(model, torch.randn(64, 64))\n"
        "activations.convert(model, activations=3)\n"
        "with activations.compress_saved():\n"
        "    y = model(torch.randn(64, 64, requires_grad=True))\n"
        "y.sum().backward()\n"
        "assert not torch.distributed.is_initialized()\n"
        "assert not [name for name in sys.modules if name.startswith('torch_cgx._mpi')]\n"
        "assert threading.active_count() == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
