"""`emulate.cast` on tensors of any shape, strides and dtype, into new ones and into others."""

from __future__ import annotations

import pytest
import torch

from torch_cgx import emulate

FORMATS = ("e4m3fn", "mxfp4", "nvfp4")
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def _values(*shape, dtype=torch.float32):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x.to(dtype)


LAYOUTS = {
    "contiguous": lambda: _values(6, 40),
    "transposed": lambda: _values(40, 6).t(),
    "expanded": lambda: _values(1, 40).expand(6, 40),
    "every second": lambda: _values(6, 80)[:, ::2],
    "a row": lambda: _values(6, 40)[3],
    "channels last": lambda: _values(2, 4, 5, 40).to(memory_format=torch.channels_last),
    "permuted": lambda: _values(3, 4, 40).permute(1, 2, 0),
    "no dimension": lambda: _values(1).reshape(()),
    "empty": lambda: _values(0),
    "empty rows": lambda: _values(0, 40),
    "empty columns": lambda: _values(6, 0),
    "one": lambda: _values(1, 1, 1),
    "many": lambda: _values(3, 70_000),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_do_not_depend_on_strides(layout, name):
    x = LAYOUTS[layout]()
    kept = x.clone()
    y = emulate.cast(x, name)
    expected = emulate.cast(x.contiguous(), name)
    assert torch.equal(y, expected) and torch.equal(x, kept)
    assert (y.shape, y.dtype, y.device) == (x.shape, x.dtype, x.device)
    assert y.stride() == torch.empty_like(x).stride()
    assert x.numel() == 0 or y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    # Rows of a matrix are one behind the other in the contiguous one.
    if layout == "transposed":
        rows = torch.stack([emulate.cast(row, "mxfp4") for row in x.contiguous()])
        assert torch.equal(emulate.cast(x, "mxfp4"), rows)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes_around_borders(dtype, name):
    """A cast of a prefix is the prefix of the cast, as far as blocks are whole."""
    whole = _values(401, dtype=dtype)
    whole[0] = 6  # nvfp4's scale of the tensor
    elementwise = emulate.preset(name).elementwise
    size = 1 if elementwise else emulate.preset(name).size
    expected = emulate.cast(whole, name)
    for n in (*range(70), 127, 128, 129, 255, 256, 257, 400):
        found = emulate.cast(whole[:n], name)
        even = n // size * size
        assert torch.equal(found[:even], expected[:even]), n


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_in_place_and_out(dtype, name):
    for layout in ("contiguous", "transposed", "channels last", "every second", "no dimension"):
        x = LAYOUTS[layout]().to(dtype)
        expected = emulate.cast(x, name)
        out = torch.full_like(x, 7)
        assert emulate.cast(x, name, out=out) is out and torch.equal(out, expected)
        # An out of other strides.
        order = tuple(reversed(range(x.dim())))
        turned = torch.full(tuple(reversed(x.shape)), 7, dtype=dtype).permute(order)
        assert emulate.cast(x, name, out=turned) is turned and torch.equal(turned, expected)
        version = x._version
        assert emulate.cast(x, name, out=x) is x and torch.equal(x, expected)
        assert x._version > version


@pytest.mark.parametrize("name", FORMATS)
def test_an_out_that_overlaps_gets_the_values_of_before(name):
    memory = _values(200)
    for shift in (1, 3, 64):
        x, out = memory[:128], memory[shift : 128 + shift]
        expected = emulate.cast(x.clone(), name)
        kept = memory.clone()
        emulate.cast(x, name, out=out)
        assert torch.equal(out, expected)
        assert torch.equal(memory[128 + shift :], kept[128 + shift :])
        memory.copy_(_values(200))
    square = _values(32, 32)
    expected = emulate.cast(square.t().clone(), name)
    emulate.cast(square.t(), name, out=square)
    assert torch.equal(square, expected)


def test_negated_and_conjugated_views():
    z = torch.complex(_values(4, 33), _values(4, 33))
    imaginary = z.conj().imag  # a view with the negative bit
    assert imaginary.is_neg()
    for name in FORMATS:
        expected = emulate.cast(imaginary.resolve_neg(), name)
        assert torch.equal(emulate.cast(imaginary, name), expected)
    with pytest.raises(TypeError, match="complex64, allowed: real values; torch.view_as_real"):
        emulate.cast(z, "e5m2")


def test_parameters_and_subclasses():
    parameter = torch.nn.Parameter(_values(40))
    expected = emulate.cast(parameter.detach(), "e5m2")
    with torch.no_grad():
        assert torch.equal(emulate.cast(parameter, "e5m2"), expected)
        assert emulate.cast(parameter, "e5m2", out=parameter) is parameter
    assert torch.equal(parameter.detach(), expected)


BAD = {
    "integers": (lambda: torch.arange(3), TypeError, "torch.int64, allowed: float32, float64"),
    "bools": (lambda: torch.ones(3, dtype=torch.bool), TypeError, "torch.bool, allowed: float32"),
    "fp8": (lambda: torch.ones(3).to(torch.float8_e5m2), TypeError, "float8_e5m2, allowed"),
    "sparse": (lambda: torch.eye(3).to_sparse(), TypeError, "torch.sparse_coo, allowed"),
    "rows": (lambda: torch.eye(3).to_sparse_csr(), TypeError, "torch.sparse_csr, allowed"),
    "a list": (lambda: [1.0], TypeError, "x is of type list, allowed: a torch.Tensor"),
    "nested": (
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        (TypeError, ValueError),
        "allowed",
    ),
}


@pytest.mark.parametrize("statistics", [False, True])
@pytest.mark.parametrize("kind", BAD)
def test_other_tensors_are_refused(kind, statistics):
    make, error, text = BAD[kind]
    with pytest.raises(error, match=text):
        emulate.cast(make(), "e5m2", statistics=statistics)


def test_a_wrong_out_is_refused_and_left_as_it_was():
    x = _values(6, 40)
    for out, error, text in (
        (torch.full((6, 41), 7.0), ValueError, r"shape \[6, 41\], allowed: \[6, 40\]"),
        (torch.full((6, 40), 7.0).double(), TypeError, "float64, allowed: torch.float32"),
        (torch.full((6, 40), 7.0).int(), TypeError, "int32, allowed"),
        (
            torch.full((1, 40), 7.0).expand(6, 40),
            (ValueError, RuntimeError),
            "memory|overlap|stride",
        ),
        ([0.0], TypeError, "out is of type list"),
    ):
        for name in ("e4m3fn", emulate.preset("mxfp4", axis=0)):
            with pytest.raises(error, match=text):
                emulate.cast(x, name, out=out)
            if isinstance(out, torch.Tensor):
                assert (out == 7).all()


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ({"format": "e9"}, ValueError, "format is 'e9', allowed: fp16, bf16, "),
        ({"format": 8}, TypeError, "format is 8, allowed: a format of torch_cgx.emulate"),
        ({"seed": -1}, ValueError, r"seed is -1, allowed: 0 to 2\*\*64 - 1"),
        ({"step": 2**64}, ValueError, "step is 18446744073709551616, allowed"),
        ({"number": 1.5}, TypeError, "number is 1.5, allowed: an int"),
        ({"seed": True}, TypeError, "seed is True, allowed: an int"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, text):
    x = _values(8)
    out = x.clone()
    with pytest.raises(error, match=text):
        emulate.cast(x, **{"format": "e5m2", "out": out, **arguments})
    assert torch.equal(x, out)
