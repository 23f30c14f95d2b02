"""Tensors of every kind through every kind of call: the result is right, or the error is clear, the
input is as before and the group goes on.
"""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.distributed import run_pooled

N = 64
EIGHT = {"bits": 8, "bucket_size": 64}
SHARES = "elements share memory"
NOT_DENSE = "not contiguous.*allowed: a contiguous tensor"
LAYOUT = "layout.*allowed: torch.strided"
NESTED = "c10d::|NestedTensor"
TORCHS_OWN = "Could not run 'c10d::"  # a layout that torch hands to no backend


def explicit(words: str) -> dict[str, str]:
    return dict.fromkeys(("config", "scatter", "gather"), words)


def base(rank: int) -> torch.Tensor:
    return torch.arange(N, dtype=torch.float32) * (rank + 1) - 20


def inference(rank: int) -> torch.Tensor:
    with torch.inference_mode():
        return base(rank) + 0


def leaf(rank: int) -> torch.Tensor:
    return base(rank).requires_grad_()


def lazily_negated(rank: int) -> torch.Tensor:
    return torch._neg_view(base(rank))


# What is made for a rank, and for which calls it is an error (a pattern); elsewhere it is right.
# Calls: plain (dist.all_reduce), config (torch_cgx.all_reduce), scatter and gather (the explicit
# ones), list (dist.all_gather), broadcast, reduce, deal (dist.scatter). None: torch's own affair.
TENSORS = {
    "contiguous": (base, {}),
    "0-dim": (lambda r: torch.tensor(1.5 + r), {"scatter": "input has 1 values"}),
    "empty": (lambda r: torch.zeros(0, 3), {}),
    "empty, strided": (lambda r: torch.zeros(0, 3).t(), {}),
    "-0.0": (lambda r: torch.full((N,), -0.0), {}),
    "1e-30": (lambda r: base(r) * 1e-30, {}),
    "1e+36": (lambda r: base(r) * 1e36, {}),
    "subnormal": (lambda r: base(r) * 2.0**-140, {}),
    "equal values": (lambda r: torch.full((N,), 0.1 + r), {}),
    "a spike": (lambda r: torch.where(torch.arange(N) == 7, 1e30, base(r)), {}),
    "fp16 limits": (lambda r: (base(r) * 200).half(), {}),
    "fp16 subnormals": (lambda r: (base(r) * 2.0**-24).half(), {}),
    "bf16 limits": (lambda r: (base(r) * 1e36).bfloat16(), {}),
    "leaf": (leaf, {}),
    "no leaf": (lambda r: leaf(r) * 2, {}),
    "view of a leaf": (lambda r: leaf(r)[2:], {}),
    "parameter": (lambda r: torch.nn.Parameter(base(r)), {}),
    "inference": (inference, {}),
    "view of an inference tensor": (lambda r: inference(r)[2:].view(2, 31), {}),
    "view with an offset": (lambda r: base(r)[3:35], {}),
    "transposed": (
        lambda r: base(r).view(8, 8).t(),
        explicit(NOT_DENSE),
    ),
    "every other": (
        lambda r: base(r)[::2],
        explicit(NOT_DENSE),
    ),
    "expanded": (
        lambda r: torch.ones(1).expand(N),
        explicit(NOT_DENSE) | dict.fromkeys(("plain", "broadcast", "reduce"), SHARES),
    ),
    "expanded, int64": (
        lambda r: torch.ones(1, dtype=torch.int64).expand(N),
        explicit(NOT_DENSE) | dict.fromkeys(("plain", "broadcast", "reduce"), SHARES),
    ),
    "overlapping": (
        lambda r: base(r).as_strided((32, 2), (1, 1)),
        explicit(NOT_DENSE) | dict.fromkeys(("plain", "broadcast", "reduce"), SHARES),
    ),
    "unfolded": (
        lambda r: base(r).unfold(0, 4, 2),
        explicit(NOT_DENSE) | dict.fromkeys(("plain", "broadcast", "reduce"), SHARES),
    ),
    "lazy zeros": (
        lambda r: torch._efficientzerotensor((N,)),
        {"config": "no memory"} | dict.fromkeys(("plain", "broadcast", "reduce"), SHARES),
    ),
    "float64, every other": (
        lambda r: base(r).double()[::2],
        explicit(NOT_DENSE),
    ),
    "int16, transposed": (
        lambda r: base(r).short().view(8, 8).t(),
        explicit(NOT_DENSE),
    ),
    "float64": (lambda r: base(r).double(), explicit("Doub")),
    "int32": (lambda r: base(r).int(), explicit("Int")),
    "uint8": (
        lambda r: base(0).clamp(0, 40).byte(),
        explicit("Byte"),
    ),
    "bool": (lambda r: base(r) > 0, explicit("Bool")),
    "int16": (
        lambda r: base(r).short(),
        explicit("Short"),
    ),
    "uint32": (
        lambda r: base(1).abs().to(torch.uint32),
        explicit("UInt32"),
    ),
    "fp8": (
        lambda r: base(r).to(torch.float8_e4m3fn),
        dict.fromkeys(("config", "scatter", "gather", "plain", "reduce"), "Float8"),
    ),
    "complex": (
        lambda r: torch.complex(base(r), -base(r)),
        explicit("ComplexFloat"),
    ),
    "conjugated": (
        lambda r: torch.complex(base(r), base(r)).conj(),
        explicit("ComplexFloat")
        | dict.fromkeys(("plain", "list", "broadcast"), "resolve_conj")
        | {"reduce": None, "deal": None},
    ),
    # torch hands a copy to the backend, whichever it is, and drops what comes back.
    "lazily negated": (lazily_negated, dict.fromkeys(("plain", "reduce", "broadcast"))),
    "sparse": (
        lambda r: base(r).to_sparse(),
        explicit(LAYOUT) | dict.fromkeys(("list", "broadcast", "reduce", "deal"), TORCHS_OWN),
    ),
    "sparse rows": (
        lambda r: torch.eye(8).to_sparse_csr(),
        explicit(LAYOUT)
        | dict.fromkeys(("plain", "list", "broadcast", "reduce", "deal"), TORCHS_OWN),
    ),
    "nested": (
        lambda r: torch.nested.nested_tensor([torch.ones(3), torch.ones(2)]),
        explicit(LAYOUT) | dict.fromkeys(("plain", "list", "broadcast", "reduce", "deal"), NESTED),
    ),
    "on no device": (
        lambda r: torch.ones(N, device="meta"),
        explicit("meta") | dict.fromkeys(("plain", "list", "broadcast", "reduce", "deal")),
    ),
}
CALLS = ("plain", "config", "scatter", "gather", "list", "broadcast", "reduce", "deal")


def values(tensor: torch.Tensor) -> torch.Tensor:
    """Dense float64 or complex128 values."""
    with torch.no_grad():
        dense = tensor.to_dense() if tensor.layout != torch.strided else tensor
        wide = torch.complex128 if dense.is_complex() else torch.float64
        return torch.empty(dense.shape, dtype=wide).copy_(dense)


def run(call: str, x: torch.Tensor, size: int) -> torch.Tensor:
    """The tensor that holds the call's result on this rank."""
    if call == "plain":
        dist.all_reduce(x)
    elif call == "config":
        torch_cgx.all_reduce(x, config=EIGHT)
    elif call == "broadcast":
        dist.broadcast(x, 1)
    elif call == "reduce":
        dist.reduce(x, 0)
    elif call == "list":
        parts = [torch.empty(x.shape, dtype=x.dtype) for _ in range(size)]
        dist.all_gather(parts, x)
        return torch.stack([part.detach() for part in parts])
    elif call == "deal":
        y = torch.empty_like(x)  # as dense or not as the input
        dist.scatter(y, [x.clone(), x] + [x] * (size - 2) if dist.get_rank() == 1 else None, 1)
        return y
    elif call == "scatter":
        y = torch.empty(max(x.numel() // size, 0) if not x.is_nested else 1, dtype=x.dtype)
        torch_cgx.reduce_scatter_single(y, x, config=EIGHT)
        return y
    else:
        y = torch.empty(x.numel() * size if not x.is_nested else 1, dtype=x.dtype)
        torch_cgx.all_gather_single(y, x, config=EIGHT)
        return y
    return x


def expected(call: str, inputs: list[torch.Tensor], rank: int) -> torch.Tensor | None:
    everyone = [values(x) for x in inputs]
    total = torch.stack(everyone).sum(0)
    if inputs[0].dtype == torch.bool:
        total = (total > 0).double()
    if call in ("plain", "config"):
        return total
    if call == "reduce":
        return total if rank == 0 else None
    if call in ("broadcast", "deal"):
        return everyone[1]
    if call == "scatter":
        n = total.numel() // len(inputs)
        return total.view(-1)[rank * n : (rank + 1) * n]
    return torch.stack(everyone) if call == "list" else torch.cat([x.reshape(-1) for x in everyone])


def one(name: str, call: str, rank: int, size: int) -> str:
    """ "" if what happened is what the table says."""
    make, errors = TENSORS[name]
    # Whatever a gather of 31 * 2 values into 3 ranks would be: shards must divide.
    x = make(rank)
    if call == "scatter" and not x.is_nested and x.numel() % size and call not in errors:
        return ""
    if call in errors and errors[call] is None:
        return ""
    before = None if x.is_nested or x.device.type == "meta" else values(x)
    try:
        y = run(call, x, size)
    except Exception as error:
        if call not in errors:
            return f"raised {type(error).__name__}: {error}"
        if not re.search(errors[call], str(error)):
            return f"says {type(error).__name__}: {error}"
        return "" if before is None or torch.equal(values(x), before) else "the input changed"
    if call in errors:
        return f"no error, but {y}"
    inputs = [make(r) for r in range(size)]
    wanted = expected(call, inputs, rank)
    if wanted is None or wanted.numel() == 0:
        return ""
    relative = {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(x.dtype, 1e-6)
    # Up to two roundings to 255 steps of the range of every rank, and of the sum.
    exact = call not in ("config", "scatter", "gather")
    spans = sum((values(i).max() - values(i).min()).item() for i in inputs) if not exact else 0.0
    limit = relative * wanted.abs().max().item() + spans / 255 + 2.0**-147
    off = (values(y).reshape(-1) - wanted.reshape(-1)).abs().max().item()
    return "" if off <= limit else f"off by {off}, allowed {limit}: {y}"


def table(rank: int, size: int) -> list[str]:
    wrong = []
    for name in TENSORS:
        for call in CALLS:
            print(name, call, flush=True)  # what a crash leaves in the log
            if text := one(name, call, rank, size):
                wrong.append(f"{name}, {call}: {text}")
    x = torch.ones(N)
    dist.all_reduce(x)
    assert torch.all(x == size), "the group is as usable as before"
    return wrong


@pytest.mark.parametrize("hosts", ["aa", "ab", "aab"])
def test_every_kind_of_tensor_is_reduced_right_or_refused(hosts):
    env = [{"CGX_HOST_ID": host} for host in hosts]
    for wrong in run_pooled(table, len(hosts), env=env, timeout=90):
        assert not wrong, "\n".join(wrong)


def overlaps(rank: int, size: int) -> list[str]:
    n, wrong = 50_000, []
    small = dist.new_group(pg_options=torch_cgx.Options(shm_segment_kb=16, segment_kb=1))
    data = torch.randn(n * size, generator=torch.Generator().manual_seed(rank))
    for bits in (4, 32):
        keywords = {"group": small, "config": {"bits": bits}}
        shard, whole = torch.empty(n), torch.empty(n * size)
        torch_cgx.reduce_scatter_single(shard, data.clone(), **keywords)
        torch_cgx.all_gather_single(whole, data[:n].clone(), **keywords)
        # The rank's own part, another rank's part, and across the borders of parts.
        for where in (rank * n, (rank + 1) % size * n, 17, n // 2):
            x = data.clone()
            torch_cgx.reduce_scatter_single(x[where : where + n], x, **keywords)
            if not torch.equal(x[where : where + n], shard):
                wrong.append(f"reduce_scatter at {bits} bits into its own input at {where}")
            x = torch.zeros(n * size)
            x[where : where + n] = data[:n]
            torch_cgx.all_gather_single(x, x[where : where + n], **keywords)
            if not torch.equal(x, whole):
                wrong.append(f"all_gather at {bits} bits of a part of its output at {where}")
    return wrong


@pytest.mark.parametrize("hosts", ["aaa", "aabb"])
def test_outputs_may_lie_inside_inputs_and_inputs_inside_outputs(hosts):
    env = [{"CGX_HOST_ID": host} for host in hosts]
    for wrong in run_pooled(overlaps, len(hosts), env=env):
        assert not wrong, "\n".join(wrong)


def gaps(rank: int, size: int) -> None:
    """Results that are to be written between other values, which stay."""
    for dtype in (torch.float32, torch.int64, torch.int16):
        for call in ("broadcast", "deal", "list", "reduce"):
            memory = torch.full((2 * N,), 9).to(dtype)
            out = memory[1::2]
            x = torch.arange(N).to(dtype) + rank
            if call == "deal":
                dist.scatter(out, [x, x + 1] if rank == 0 else None, 0)
                wanted = torch.arange(N).to(dtype) + rank
            elif call == "list":
                if dtype == torch.int16:
                    continue  # asks for a contiguous output, by name
                dist.all_gather([out, torch.zeros(N, dtype=dtype)], x)
                wanted = torch.arange(N).to(dtype)
            else:
                out.copy_(x)
                if call == "broadcast":
                    dist.broadcast(out, 0, async_op=True).wait()
                    wanted = torch.arange(N).to(dtype)
                else:
                    dist.reduce(out, 0)
                    wanted = 2 * torch.arange(N).to(dtype) + 1 if rank == 0 else x
            assert torch.equal(out, wanted), (call, dtype, rank, out)
            assert torch.all(memory[::2] == 9), (call, dtype)


def test_results_may_have_gaps():
    run_pooled(gaps, 2)


def negated(rank: int, size: int) -> float:
    # On one rank only: a backend that reads the memory adds what should be subtracted.
    x = torch._neg_view(base(0)) if rank == 0 else base(0)
    torch_cgx.all_reduce(x, config=EIGHT)
    return values(x).abs().max().item()


def test_a_lazily_negated_view_is_taken_at_its_value():
    assert max(run_pooled(negated, 2)) <= 2 * 63 / 255


def no_first_dimension(rank: int, size: int) -> list[str]:
    texts = []
    for call in (
        lambda: dist.reduce_scatter_single(torch.zeros(0), torch.tensor(1.0)),
        lambda: dist.all_to_all_single(torch.tensor(1.0), torch.tensor(1.0)),
    ):
        with pytest.raises((RuntimeError, ValueError)) as info:
            call()
        texts.append(str(info.value))
    return texts


def test_a_tensor_without_a_dimension_to_scatter_is_an_error():
    run_pooled(no_first_dimension, 2)


def outputs(rank: int, size: int) -> None:
    x = torch.ones(8, dtype=torch.float64)
    shared = torch.zeros(1, dtype=torch.float64).expand(8)
    calls = {
        "all_gather": lambda: dist.all_gather([shared] * size, x),
        "all_gather_into": lambda: dist.all_gather_single(
            torch.zeros(1, dtype=torch.float64).expand(8 * size), x
        ),
        "reduce_scatter": lambda: dist.reduce_scatter_single(
            torch.zeros(1, dtype=torch.float64).expand(8 // size), x
        ),
        "all_to_all": lambda: dist.all_to_all_single(shared, x),
        "recv": lambda: dist.recv(shared, 1 - rank),
        "compressed": lambda: torch_cgx._backend.backend_of().all_gather_codec(
            torch.zeros(1).expand(8 * size), x.float(), torch_cgx._C.Codec(bits=4)
        ),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match="share memory.*clone"):
            call()
        assert torch.all(shared == 0), name
    dist.all_reduce(x)
    assert torch.all(x == size)


def test_outputs_whose_elements_share_memory_are_refused():
    run_pooled(outputs, 2)


def freed(rank: int, size: int) -> None:
    """Tensors whose memory was given back, as FSDP does: an error on each rank, no crash."""
    x, whole = torch.ones(N), torch.ones(N * size)
    gone, large = torch.ones(N), torch.ones(N * size)
    part = torch.ones(2 * N)[N:]
    for tensor in (gone, large):
        tensor.untyped_storage().resize_(0)
    part.untyped_storage().resize_(N * part.itemsize)
    parts, root = [x.clone() for _ in range(size)], rank == 0
    calls = {
        "all_reduce": lambda: dist.all_reduce(gone),
        "all_reduce max": lambda: dist.all_reduce(part, op=dist.ReduceOp.MAX),
        "all_reduce config": lambda: torch_cgx.all_reduce(gone, config=EIGHT),
        "reduce": lambda: dist.reduce(gone, 0),
        "broadcast": lambda: dist.broadcast(part, 0),
        "broadcast config": lambda: torch_cgx.broadcast(gone, 0, config=EIGHT),
        "all_gather": lambda: dist.all_gather(parts, gone),
        "all_gather out": lambda: dist.all_gather([gone] * size, x),
        "all_gather single": lambda: dist.all_gather_single(whole, part),
        "all_gather single out": lambda: dist.all_gather_single(large, x),
        "gather": lambda: dist.gather(gone, parts if root else None, 0),
        "scatter": lambda: dist.scatter(gone, parts if root else None, 0),
        "reduce_scatter": lambda: dist.reduce_scatter(x, [gone] * size),
        "reduce_scatter single": lambda: dist.reduce_scatter_single(x, large),
        "reduce_scatter out": lambda: dist.reduce_scatter_single(gone, whole),
        "all_to_all": lambda: dist.all_to_all(parts, [gone] * size),
        "all_to_all single": lambda: dist.all_to_all_single(gone, x),
        "send": lambda: dist.send(gone, 1 - rank),
        "recv": lambda: dist.recv(part, 1 - rank),
    }
    for name, call in calls.items():
        print(name, flush=True)  # what a crash leaves in the log
        with pytest.raises(ValueError, match="its storage, which was resized"):
            call()
    dist.all_reduce(x)
    assert torch.all(x == size)


@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_tensors_without_memory_are_refused(hosts):
    run_pooled(freed, 2, env=[{"CGX_HOST_ID": host} for host in hosts])
