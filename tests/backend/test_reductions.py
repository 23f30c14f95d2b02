"""Reductions of every op and dtype of CPU tensors, on the engine, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.distributed import run_pooled

INTEGERS = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
]
FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]
SIZES = [0, 1, 7, 64, 401, 20000]

BITS = {"BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor}
NUMBERS = {"SUM": np.add, "MIN": np.minimum, "MAX": np.maximum, "PRODUCT": np.multiply}
OPS = NUMBERS | BITS | {"AVG": np.add}


def ops_of(dtype: torch.dtype) -> list[str]:
    if dtype.is_complex:
        return ["SUM", "AVG"]
    if dtype == torch.bool:
        return [*NUMBERS, *BITS]
    return [*NUMBERS, "AVG"] if dtype.is_floating_point else list(OPS)


def drawn(dtype: torch.dtype, op: str, n: int, rank: int) -> torch.Tensor:
    """Integers of any bits; floats whose results are exact in any order."""
    draws = np.random.default_rng(rank * 100 + n)
    if dtype in INTEGERS:
        raw = draws.integers(0, 256, n * dtype.itemsize, dtype=np.uint8)
        return torch.from_numpy(raw.view(str(dtype).removeprefix("torch.")))
    if dtype == torch.bool:
        return torch.from_numpy(draws.integers(0, 2, n) > 0)
    if dtype.is_complex:
        parts = [torch.from_numpy(draws.integers(-32, 33, n)).double() / 4 for _ in "ri"]
        return torch.complex(*parts).to(dtype)
    if op == "PRODUCT":
        return torch.from_numpy(draws.choice([1.0, -1, 2, 0.5], n)).to(dtype)
    return (torch.from_numpy(draws.integers(-32, 33, n)).double() / 4).to(dtype)


def as_numpy(x: torch.Tensor) -> np.ndarray:
    if x.dtype == torch.complex32:
        return x.to(torch.complex64).numpy()
    return x.float().numpy() if x.dtype == torch.bfloat16 else x.numpy()


def expected(dtype: torch.dtype, op: str, n: int, size: int) -> torch.Tensor:
    inputs = [as_numpy(drawn(dtype, op, n, rank)) for rank in range(size)]
    result = inputs[0]
    for other in inputs[1:]:
        result = OPS[op](result, other)
    if op == "AVG" and dtype in INTEGERS:
        # Towards zero, where numpy's // goes down.
        result = np.array([int(abs(int(x)) // size) * (1 if x >= 0 else -1) for x in result])
        return torch.from_numpy(result.astype(inputs[0].dtype))
    if op == "AVG":
        wide = np.float64 if dtype in (torch.float64, torch.complex128) else np.float32
        parts = result.view(result.real.dtype).astype(wide) / wide(size)
        result = parts.view(result.dtype) if dtype.is_complex else parts
    return torch.from_numpy(np.asarray(result)).to(dtype)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return a.numel() == 0 or torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def reduced(rank: int, size: int) -> tuple[list[str], int]:
    """What is wrong, and how many calls the engine has run."""
    wrong = []
    calls = 0
    for dtype in (*INTEGERS, *FLOATS, *COMPLEX, torch.bool):
        for number, name in enumerate(ops_of(dtype)):
            op = getattr(dist.ReduceOp, name)
            for n in SIZES[number % 2 :: 2]:
                mine, wanted = drawn(dtype, name, n, rank), expected(dtype, name, n, size)
                result = mine.clone()
                dist.all_reduce(result, op)
                if not same(result, wanted):
                    wrong.append(f"all_reduce {name} of {n} {dtype}")
                root = (n + number) % size
                result = mine.clone()
                dist.reduce(result, root, op)
                if not same(result, wanted if rank == root else mine):
                    wrong.append(f"reduce {name} of {n} {dtype}")
                whole = drawn(dtype, name, n * size, rank)
                sums = expected(dtype, name, n * size, size)[rank * n : (rank + 1) * n]
                result = torch.empty(n, dtype=dtype)
                dist.reduce_scatter_single(result, whole, op)
                if not same(result, sums):
                    wrong.append(f"reduce_scatter_single {name} of {n} {dtype}")
                parts = list(whole.split(n)) if n else [whole] * size
                if number % 2:
                    parts = [part.clone() for part in parts]
                result = torch.empty(n, dtype=dtype)
                dist.reduce_scatter(result, parts, op)
                if not same(result, sums):
                    wrong.append(f"reduce_scatter {name} of {n} {dtype}")
                calls += 4
    return wrong, torch_cgx.stats()["calls"] - calls


@pytest.mark.parametrize(
    "hosts, communicator", [("aa", "SHM"), ("aaa", "SHM"), ("aab", "SHM"), ("aaa", "GLOO")]
)
def test_every_op_of_every_type(hosts, communicator):
    env = [{"CGX_HOST_ID": host, "CGX_INNER_COMMUNICATOR_TYPE": communicator} for host in hosts]
    for wrong, others in run_pooled(reduced, len(hosts), env=env, timeout=240):
        assert not wrong, "\n".join(wrong[:20])
        assert others == 0


def premultiplied(rank: int, size: int) -> None:
    total = sum(range(1, size + 1))
    for dtype in FLOATS:
        for factor in (0.5, torch.tensor([0.5])):
            op = dist._make_nccl_premul_sum(factor)
            x = torch.full((100,), rank + 1).to(dtype)
            result = x.clone()
            dist.all_reduce(result, op)
            assert torch.all(result == total / 2), (dtype, result)
            result = x.clone()
            dist.reduce(result, 0, op)
            assert torch.all(result == (total / 2 if rank == 0 else rank + 1)), (dtype, result)
            whole = torch.full((100 * size,), rank + 1).to(dtype)
            dist.reduce_scatter_single(result, whole, op)
            assert torch.all(result == total / 2)
            dist.reduce_scatter(result, list(whole.chunk(size)), op)
            assert torch.all(result == total / 2)
            assert torch.all(whole == rank + 1), "the input stays"
    with pytest.raises(TypeError, match="PREMUL_SUM of a Int tensor; allowed: float32"):
        dist.all_reduce(torch.ones(4, dtype=torch.int32), dist._make_nccl_premul_sum(2.0))


def test_premultiplied_sums():
    run_pooled(premultiplied, 2)


def uneven(rank: int, size: int) -> None:
    lengths = [3, 0, 1000][:size]
    for dtype in (torch.float32, torch.int16):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
            for in_place in (False, True):
                inputs = [torch.arange(k).to(dtype) + 10 * rank for k in lengths]
                kept = [x.clone() for x in inputs]
                output = inputs[rank] if in_place else torch.zeros(lengths[rank], dtype=dtype)
                dist.reduce_scatter(output, inputs, op)
                steps = torch.arange(lengths[rank]).to(dtype)
                most = 10 * (size - 1)
                added = sum(10 * r for r in range(size))
                wanted = steps + most if op == dist.ReduceOp.MAX else size * steps + added
                assert torch.equal(output, wanted), (dtype, op, output)
                for r in range(size):
                    if not (in_place and r == rank):
                        assert torch.equal(inputs[r], kept[r])


@pytest.mark.parametrize("hosts", ["aaa", "aab"])
def test_reduce_scatter_of_uneven_lists(hosts):
    run_pooled(uneven, 3, env=[{"CGX_HOST_ID": host} for host in hosts])


def coalesced(rank: int, size: int) -> int:
    total = sum(range(1, size + 1))
    group = dist.group.WORLD
    before = torch_cgx.stats()["calls"]
    tensors = [torch.full((n,), rank + 1, dtype=torch.int16) for n in (3, 99)]
    dist.all_reduce_coalesced(tensors, dist.ReduceOp.MAX)
    assert all(torch.all(t == size) for t in tensors)
    with dist._coalescing_manager(group):
        for tensor in tensors:
            dist.all_reduce(tensor, dist.ReduceOp.SUM)
    assert all(torch.all(t == size * size) for t in tensors)
    outputs = [torch.zeros(2, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)]
    inputs = [torch.full((n * size,), float(rank + 1), dtype=torch.float64) for n in (2, 5)]
    with dist._coalescing_manager(group):
        for output, value in zip(outputs, inputs, strict=True):
            dist.reduce_scatter_single(output, value)
    assert all(torch.all(t == total) for t in outputs)
    return torch_cgx.stats()["calls"] - before


def test_coalesced():
    # The plans of a call are the engine's calls.
    assert run_pooled(coalesced, 3) == [6, 6, 6]


def refused(rank: int, size: int) -> None:
    cases = [
        (torch.ones(4), "BOR", ValueError, "BOR of float32 values: operations on bits are for"),
        (torch.ones(4).double(), "BAND", ValueError, "float64 values: operations on bits"),
        (torch.ones(4) > 0, "AVG", TypeError, "AVG of a bool tensor"),
        (torch.ones(4).to(torch.float8_e5m2), "SUM", TypeError, "Float8.*not supported"),
    ]
    for tensor, name, error, text in cases:
        op = getattr(dist.ReduceOp, name)
        whole = torch.cat([tensor.view(torch.uint8)] * size).view(tensor.dtype)
        for call in (
            lambda t=tensor, op=op: dist.all_reduce(t, op),
            lambda t=tensor, op=op: dist.reduce(t, 0, op),
            lambda t=tensor, op=op, whole=whole: dist.reduce_scatter_single(t, whole, op),
            lambda t=tensor, op=op: dist.reduce_scatter(t, [t.clone()] * size, op),
        ):
            with pytest.raises(error, match=text):
                call()
    # torch itself takes complex tensors as real ones in all_reduce, and refuses other ops.
    with pytest.raises(
        ValueError, match="MAX of complex64 values: complex values can only be summed"
    ):
        dist.reduce(torch.ones(4, dtype=torch.complex64), 0, dist.ReduceOp.MAX)
    tensor = torch.ones(5)
    dist.all_reduce(tensor)  # nothing was sent
    assert torch.all(tensor == size)


def test_what_a_type_has_not_is_refused():
    run_pooled(refused, 2)


def strided(rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.int64, torch.int16, torch.float64):
        memory = torch.full((20, 10), 7).to(dtype)
        view = memory[::2].t()
        view.copy_(torch.arange(100).view(10, 10) + rank)
        dist.all_reduce(view, dist.ReduceOp.MAX)
        assert torch.equal(view, (torch.arange(100).view(10, 10) + size - 1).to(dtype))
        dist.reduce(view, 1)
        assert torch.all(memory[1::2] == 7)
        factor = size if rank == 1 else 1
        assert torch.equal(view, (torch.arange(100).view(10, 10) + size - 1).to(dtype) * factor)
        output = memory[1::2, ::2]
        whole = torch.arange(50 * size).to(dtype)
        dist.reduce_scatter_single(output, whole.view(10 * size, 5))
        wanted = size * (torch.arange(50) + 50 * rank).view(10, 5).to(dtype)
        assert torch.equal(output, wanted)


def test_strided_tensors():
    run_pooled(strided, 2)


def nan_wins(rank: int, size: int) -> list[bytes]:
    bits = []
    for dtype in FLOATS:
        for op in (dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
            x = torch.tensor([float("nan") if rank == 1 else 1.0, -0.0 if rank else 0.0, 2.0])
            x = x.to(dtype)
            dist.all_reduce(x, op)
            assert x[0].isnan() and x[2] == (2.0**size if op == dist.ReduceOp.PRODUCT else 2)
            bits.append(x.view(torch.uint8).numpy().tobytes())
    return bits


def test_nan_wins_on_all_ranks():
    first, *others = run_pooled(nan_wins, 3)
    assert all(other == first for other in others)
