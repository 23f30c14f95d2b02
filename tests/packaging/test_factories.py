"""Every tensor that the packages make says its dtype and its device.

What it leaves open would come from `torch.set_default_dtype` and `torch.set_default_device`, which
belong to the program. tests/utils/test_torch_defaults.py shows the effect.
"""

from __future__ import annotations

import ast

import pytest

from tests.distributed import ROOT

FACTORIES = (
    *("arange", "as_tensor", "asarray", "empty", "empty_permuted", "empty_strided", "eye", "full"),
    *("linspace", "logspace", "normal", "ones", "rand", "randint", "randn", "randperm", "range"),
    *("scalar_tensor", "sparse_coo_tensor", "tensor", "tril_indices", "triu_indices", "zeros"),
)
OF_DEFAULT_TYPE = ("Tensor", "FloatTensor", "DoubleTensor", "LongTensor", "ByteTensor")
WHEREVER = {"frombuffer": {"dtype"}}  # always on the CPU


def _missing(source: str) -> list[tuple[int, str]]:
    """(line, call) of factories without an explicit dtype or device."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"):
            continue
        name = node.func.attr
        given = {keyword.arg for keyword in node.keywords}
        needed = WHEREVER.get(name, {"dtype", "device"} if name in FACTORIES else set())
        if name in OF_DEFAULT_TYPE or not needed <= given:
            found.append((node.lineno, ast.unparse(node)))
    return found


@pytest.mark.parametrize(
    ("source", "number"),
    [
        ("torch.zeros(3)", 1),
        ("torch.zeros(3, dtype=torch.float32)", 1),
        ("torch.zeros(3, device='cpu')", 1),
        ("torch.zeros(3, dtype=t.dtype, device=t.device)", 0),
        ("f(torch.tensor([1]), [torch.arange(3)])", 2),
        ("torch.zeros_like(x); x.new_zeros(3); numpy.zeros(3)", 0),
        ("torch.frombuffer(b, dtype=torch.uint8)", 0),
        ("torch.frombuffer(b)", 1),
        ("torch.Tensor([1.0])", 1),
    ],
)
def test_the_scan_finds_what_is_open(source, number):
    assert len(_missing(source)) == number


@pytest.mark.parametrize("package", ["torch_cgx", "cgx_utils"])
def test_no_factory_leaves_dtype_or_device_open(package):
    files = sorted((ROOT / package).rglob("*.py"))
    assert len(files) > 20
    open_ = [
        f"{path.relative_to(ROOT)}:{line}: {call}"
        for path in files
        for line, call in _missing(path.read_text())
    ]
    assert open_ == []
