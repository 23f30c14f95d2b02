"""APS of real groups: `torch_cgx.all_reduce(..., aps=True)` against the simulation and against
float64, and what goes wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.device import fake_cuda
from tests.distributed import run_pooled
from torch_cgx import _C, _aps

FP16 = {"codec": "fp16", "bits": 16}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SIZES = (0, 1, 7, 64, 400, 3001)


def values(rank: int, n: int, scale: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * n + rank)
    return (torch.randn(n, generator=generator) * scale).to(dtype)


def layers_of(n: int) -> list[tuple[int, Any]]:
    """Compressed, exact, of zeros, empty, compressed."""
    cuts = [n // 3, n // 8, n // 8, 0]
    return list(zip([*cuts, n - sum(cuts)], [FP16, None, FP16, FP16, FP16], strict=True))


def layered(rank: int, n: int, dtype: torch.dtype) -> torch.Tensor:
    """Layers whose values are far apart; one that is zero."""
    scales = (1e-7, 1.0, 0.0, 1.0, 3e4 if dtype == torch.float16 else 1e9)
    layers = zip(layers_of(n), scales, strict=True)
    parts = [values(rank, numel, scale, dtype) for (numel, _), scale in layers]
    return torch.cat(parts)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def _everything(rank: int, size: int) -> list[str]:
    """The names of cases that are wrong, on one rank."""
    wrong = []
    for dtype in DTYPES:
        for n in SIZES:
            for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
                inputs = [layered(r, n, dtype) for r in range(size)]
                x = inputs[rank].clone()
                work = torch_cgx.all_reduce(x, op, layers=layers_of(n), aps=True, async_op=True)
                if n % 2:
                    work.wait()
                else:
                    (found,) = work.get_future().wait()
                    assert found.data_ptr() == x.data_ptr()
                expected = torch_cgx.simulate(inputs, layers=layers_of(n), op=op, aps=True).result
                if not same(x, expected):
                    wrong.append(f"{dtype} {n} {op}")
                if not work.is_completed() or not same(x, expected):  # shifted back twice?
                    wrong.append(f"{dtype} {n} {op} after is_completed()")
    # The group's configuration, which is exact here; a leaf that requires a gradient.
    x = torch.ones(100, requires_grad=True)
    torch_cgx.all_reduce(x, config={}, aps=True)
    wrong += [] if x.detach().eq(size).all() else ["the group's configuration"]
    torch_cgx.all_reduce(x, config=FP16, aps=True)
    wrong += [] if x.detach().eq(size**2).all() else ["a leaf"]
    return wrong


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_get_the_simulations_bits(size):
    assert run_pooled(_everything, size) == [[]] * size


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e-12, 1.0, 1e6, 1e30, 8e36])
def test_values_keep_their_relative_precision(ranks, scale):
    """11 bits of each value less than 2^14 below the largest, whatever that is."""
    tensors = [values(r, 500, scale) for r in range(ranks)]
    found = torch_cgx.simulate(tensors, FP16, algorithm="oneshot", aps=True).result
    given = torch.stack(tensors).double()
    step = given.abs().max() * 2 * ranks * 2.0**-29 * 2.0**-10  # of fp16's subnormal numbers
    limit = (given.abs() * 2.0**-11 + step).sum(0) + given.sum(0).abs() * 2.0**-22 + 2.0**-149
    assert ((found.double() - given.sum(0)).abs() <= limit).all()
    alone = torch_cgx.simulate(tensors, FP16, algorithm="oneshot").result
    if scale < 1e-11 and ranks > 1:
        assert not alone.any() and found.any()
    if scale > 1e6 and ranks > 1:
        assert not alone.isfinite().all() and found.isfinite().all()


def test_residuals_are_those_of_shifted_values():
    """By a model: what float16 of (x + residual) 2^s leaves out, times 2^-s."""
    for dtype in (torch.float32, torch.bfloat16):
        tensors = [values(r, 300, 3e-8) for r in range(2)]
        residuals = [torch.zeros(300, dtype=dtype) for _ in tensors]
        owed = [np.zeros(300, np.float32) for _ in tensors]
        for _ in range(3):
            torch_cgx.simulate(tensors, FP16, algorithm="oneshot", aps=True, residuals=residuals)
            sums = [x.numpy() + r for x, r in zip(tensors, owed, strict=True)]
            shift = 15 - int(np.ceil(np.log2(2 * np.float64(max(np.abs(s).max() for s in sums)))))
            for r, total in enumerate(sums):
                sent = np.ldexp(
                    (np.ldexp(total, shift)).astype(np.float16).astype(np.float32), -shift
                )
                owed[r] = torch.from_numpy(total - sent).to(dtype).float().numpy()
                np.testing.assert_array_equal(residuals[r].float().numpy(), owed[r])


def test_a_layer_that_is_not_finite_keeps_its_residual():
    for bad in (float("nan"), float("inf")):
        tensors = [torch.ones(4), torch.tensor([1.0, bad, 1.0, 1.0])]
        residuals = [torch.full((4,), 0.5), torch.full((4,), 0.25)]
        layers = [(2, FP16), (2, FP16)]
        found = torch_cgx.simulate(tensors, layers=layers, aps=True, residuals=residuals)
        assert found.result[:2].isnan().all() and found.result[2:].eq(2.75).all()
        assert residuals[1][1] == 0.25 and residuals[0].isfinite().all()


FLOATS: list[dict[str, Any]] = [
    {"codec": "float", "bits": 8, "exponent": 4, "mantissa": 3},
    {"codec": "float", "bits": 8, "exponent": 4, "mantissa": 3, "variant": "fn"},
    {"codec": "float", "bits": 8, "exponent": 5, "mantissa": 2, "variant": "fnuz"},
    {"codec": "float", "bits": 8, "exponent": 3, "mantissa": 0, "overflow": "inf"},
]
needs_float = pytest.mark.skipif(
    "float" not in torch_cgx.codecs.names(), reason="there is no codec float"
)


def _floats(rank: int, size: int) -> list[str]:
    wrong = []
    for config in FLOATS:
        for n in (1, 400, 3001):
            # Equal values: the longest sum that the range has to hold.
            inputs = [values(r, n, 1e-6) for r in range(size - 1)] + [torch.full((n,), 1e-5)]
            x = inputs[rank].clone()
            torch_cgx.all_reduce(x, config=config, aps=True)
            expected = torch_cgx.simulate(inputs, config, aps=True).result
            wrong += [] if same(x, expected) else [f"{config} {n}"]
    return wrong


@needs_float
def test_ranks_get_the_simulations_bits_in_formats_of_8_bits():
    assert run_pooled(_floats, 4) == [[]] * 4


@needs_float
@pytest.mark.parametrize("config", FLOATS)
@pytest.mark.parametrize("ranks", [2, 3, 5, 10, 11])
def test_sums_of_equal_values_stay_in_the_range(config, ranks):
    """They may be rounded up on every rank, and their sum once more."""
    for value in (1e-6, 1.74e-3, 0.76, 1e9):
        for algorithm in ("oneshot", "sra"):
            found = torch_cgx.simulate(
                [torch.full((64,), value)] * ranks, config, algorithm=algorithm, aps=True
            )
            assert found.error["relative_l2"] <= (1 + 0.5 * 2.0 ** -config["mantissa"]) ** 2 - 1
    bad = [torch.ones(64) for _ in range(ranks)]
    bad[1][3] = float("inf")
    assert torch_cgx.simulate(bad, config, aps=True).result.isnan().all()


def _counted(rank: int, size: int) -> list[int]:
    sent = []
    for aps in (False, True):
        x = values(rank, 4096, 1e-7)
        torch_cgx.reset_stats()
        torch_cgx.all_reduce(x, config=FP16, aps=aps)
        sent.append(torch_cgx.stats()["bytes_sent"])
    return sent


def test_aps_adds_a_few_bytes():
    for plain, shifted in run_pooled(_counted, 2):
        assert 8192 <= plain <= shifted <= plain + 200


def _mismatch(rank: int, size: int, kind: str) -> None:
    config = dict(FP16)
    if kind == "codecs":  # after equal exponents
        x = torch.full((100,), 1e-6)
        config = {"codec": "fp16" if rank == 0 else "bf16", "bits": 16}
        work = torch_cgx.all_reduce(x, config=config, aps=True, async_op=True)
        assert isinstance(work, dist.Work)
        work.wait()
    elif kind == "aps":
        torch_cgx.all_reduce(torch.ones(100), config=config, aps=rank == 0)
    else:
        layers = [(50, config), (50, config if rank == 0 else None)]
        torch_cgx.all_reduce(torch.ones(100), layers=layers, aps=True)


@pytest.mark.parametrize("kind", ["aps", "layers", "codecs"])
def test_ranks_that_differ_are_a_mismatch(kind):
    outcomes = run_pooled(_mismatch, 2, kind, check=False, timeout=30)
    for outcome in outcomes:
        assert isinstance(outcome.exception, torch_cgx.MismatchError), outcome.report()
        assert outcome.seconds < 20


def same_values(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.to_dense(), b.to_dense())


def _refused(rank: int, size: int) -> list[str]:
    x = torch.full((10,), 1e-6)
    residual = torch.full((10,), 1e-7)
    cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (TypeError, "aps=1; allowed", {"config": FP16, "aps": 1}),
        (ValueError, "aps=True without config or layers", {}),
        (ValueError, "aps=True with the codec 'maxmin", {"config": {"bits": 4}}),
        (
            ValueError,
            "aps=True with the codec 'rotated",
            {"config": {"bits": 4, "codec": "rotated"}},
        ),
        (ValueError, "allowed: SUM, AVG", {"config": FP16, "op": dist.ReduceOp.MAX}),
        (TypeError, "torch.float64 with aps=True", {"config": FP16, "tensor": x.double()}),
        (TypeError, "torch.int64 with aps=True", {"config": FP16, "tensor": x.long()}),
        (TypeError, "torch.complex64 with aps=True", {"config": FP16, "tensor": x.cfloat()}),
        (TypeError, "layout torch.sparse_coo; allowed", {"config": FP16, "tensor": x.to_sparse()}),
        (TypeError, "residual is torch.float16", {"config": FP16, "residual": residual.half()}),
        (ValueError, "residual has the shape", {"config": FP16, "residual": residual[:9]}),
        (ValueError, "residual shares memory", {"config": FP16, "residual": x}),
    ]
    wrong = []
    for kind, text, arguments in cases:
        tensor = arguments.pop("tensor", x)
        kept = tensor.clone()
        try:
            torch_cgx.all_reduce(tensor, **{"aps": True, **arguments})
            wrong.append(f"{text}: accepted")
        except kind as error:
            wrong += [] if text in str(error) else [f"{text}: {error}"]
        wrong += [] if same_values(tensor, kept) else [f"{text}: the tensor has changed"]
    wrong += [] if x.eq(torch.full((10,), 1e-6)).all() else ["the tensor has changed"]
    wrong += [] if torch_cgx.stats()["calls"] == 0 else ["something was sent"]
    return wrong


def test_errors_come_before_anything_is_changed():
    assert run_pooled(_refused, 2) == [[]] * 2


class FloatCodec:
    """What a codec of the family `float` shows of itself."""

    codec = "float"

    def __init__(self, exponent: int, mantissa: int, variant: str = "ieee"):
        self.parameters = {"exponent": exponent, "mantissa": mantissa, "variant": variant}


@pytest.mark.parametrize(
    ("format", "top"),
    [((5, 2), 15), ((4, 3), 7), ((3, 0), 3), ((2, 1), 1), ((4, 3, "fn"), 8), ((5, 2, "fnuz"), 15)],
)
def test_the_top_of_a_format(format, top):
    assert _aps.top_of(FloatCodec(*format)) == top


def test_codecs_that_take_part():
    assert _aps.top_of(_C.Codec(codec="fp16", bits=16)) == 15
    assert _aps.top_of(_C.Codec(codec="bf16", bits=16)) == 127
    with pytest.raises(ValueError, match=r"codec 'trellis.*allowed: float, fp16, bf16"):
        _aps.top_of(_C.Codec(codec="trellis", bits=2))


def _on_a_gpu(rank: int, size: int) -> list[str]:
    wrong = []
    for n in (1, 400, 4097):
        inputs = [layered(r, n, torch.bfloat16) for r in range(size)]
        residuals = [values(r, n, 1e-3) for r in range(size)]
        expected = torch_cgx.simulate(
            inputs, layers=layers_of(n), aps=True, residuals=[r.clone() for r in residuals]
        ).result
        x, residual = inputs[rank].to("cuda"), residuals[rank].to("cuda")
        work = torch_cgx.all_reduce(
            x, layers=layers_of(n), aps=True, residual=residual, async_op=True
        )
        work.get_future().wait()
        work.wait()
        wrong += [] if same(x.cpu(), expected) else [f"{n}"]
    return wrong


@fake_cuda.needed
def test_tensors_of_a_gpu():
    assert fake_cuda.run(_on_a_gpu, 2) == [[]] * 2
