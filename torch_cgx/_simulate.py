"""Simulates an all-reduce of n ranks in one process, with the engine's own reducers."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from torch_cgx import _C, _aps, _format_sums
from torch_cgx._backend import check_op
from torch_cgx._config import codec_of, defaults, layers_of, list_of
from torch_cgx._dtypes import COMPUTED
from torch_cgx._steps import check_step
from torch_cgx._storage import check_storage
from torch_cgx._threads import safe_after_fork


@dataclasses.dataclass(frozen=True)
class Simulation:
    """The result of `simulate`.

    outputs: one tensor per rank, bit-identical to each other. error: "max_abs", the largest
    |output - exact|, and "relative_l2", ||output - exact|| / ||exact||, against the float64 sum
    (mean for AVG) of the inputs. bytes_sent: by rank, over all its receivers, headers included;
    bytes_sent_across: those of them that leave the rank's host. algorithm: the algorithm used,
    between hosts if there are several: "oneshot", "sra", "ring" or "direct" (exact, over Gloo);
    "gather" of sums in a format, whose outputs are one and the same tensor.
    """

    outputs: list[torch.Tensor]
    error: dict[str, float]
    bytes_sent: list[int]
    bytes_sent_across: list[int]
    algorithm: str

    @property
    def result(self) -> torch.Tensor:
        """The result, which is the same on all ranks."""
        return self.outputs[0]


@safe_after_fork
def simulate(
    tensors: Sequence[torch.Tensor],
    config: Any = None,
    algorithm: str = "auto",
    layers: Sequence[Any] | None = None,
    op: Any = dist.ReduceOp.SUM,
    sequence: int = 0,
    hosts: Sequence[Any] | None = None,
    options: _C.Options | None = None,
    residuals: Sequence[torch.Tensor] | None = None,
    step: int | None = None,
    *,
    accumulate: Any = None,
    kahan: bool = False,
    order: str = "rank",
    aps: bool = False,
    emulate_node: int = 1,
) -> Simulation:
    """All-reduces tensors[r] of rank r among len(tensors) simulated ranks; the inputs are not
    changed.

    tensors: CPU, fp32, fp16 or bf16, of equal shape and dtype, any number >= 1. config, layers: as
    in `all_reduce`; with neither, the environment's configuration. algorithm: "auto" (as the
    backend chooses), "oneshot" (one rounding), "sra" (scatter-reduce-all-gather, two roundings) or
    "ring" (a rounding per rank); with several hosts, the algorithm of the reduction between them.
    op: SUM or AVG. sequence: number of the call in its group, which keys random numbers. step: as
    in `all_reduce`, keys them instead, as in the first call of the step. hosts: the host of every
    rank, any hashable labels, as in [0, 0, 1, 1]; None: one host. options: of the simulated group,
    for the settings that change its results (segment_kb, shm_segment_kb, fusion_buffer_mb,
    intra_broadcast, intra_compress, inner_communicator, cross_communicator); None: the
    environment's. residuals: for error feedback, residuals[r] of rank r as in `all_reduce`, all of
    one dtype; read and written. aps: as in `all_reduce`; bytes_sent does not count its exponents.

    accumulate: a format of `torch_cgx.emulate`, or its name: shows sums *in* that format, as on
    hardware without a wider one. No group of this project sums so: the sums of real groups are
    fp32, whatever their messages hold. A partial sum r of a value starts as 0, and each rank adds
    its value g by r <- cast(r + g), where r + g is rounded to fp32 first. The values are as they
    are, or with `aps` cast(g 2^s), with one s for the tensor, and the sum is divided by 2^s. This
    is the rule of CPD (arXiv 1911.08907), whose own numbers come with Float(e, m, variant="cpd").
    `sequence` or `step` keys random numbers of a stochastic rounding. kahan: Kahan's summation, of
    which each operation is rounded to the format: y = cast(g - c), t = cast(r + y), c = cast(cast(t
    - r) - y), r = t. order: "rank" or "reverse", of the ranks. emulate_node: k micro-batches a
    rank: tensors[r * k : r * k + k] are of rank r. A rank casts them (with `aps` shifted by a power
    of two of its own, for k values) and adds them by r <- cast(r + g), divided by 2^s; the sum over
    ranks follows. AVG divides by the number of ranks, in fp32. With `accumulate`, config,
    algorithm, layers, hosts, options and residuals are not allowed. In the result, algorithm is
    "gather", as every rank needs all values to sum them in order; outputs has the ranks;
    bytes_sent counts these values, in the format's bits where they are numbers of the format (with
    `aps`, or sums of micro-batches), else in those of the tensors' dtype, with `aps` 4 bytes more
    for each receiver, and no headers.
    """
    tensors = _checked(tensors)
    _check_switches(kahan, order, aps, emulate_node)
    if not isinstance(algorithm, str):
        raise TypeError(f"algorithm={algorithm!r} is not a str; allowed: auto, oneshot, sra, ring")
    check_op(op)
    if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        raise ValueError(f"op={op!r}; allowed: SUM, AVG")
    if isinstance(sequence, bool) or not isinstance(sequence, int):
        raise TypeError(f"sequence={sequence!r} is not an integer; allowed: 0 to 2**64 - 1")
    if not 0 <= sequence < 2**64:
        raise ValueError(f"sequence={sequence}; allowed: 0 to 2**64 - 1")
    check_step(step)
    average = op == dist.ReduceOp.AVG
    if accumulate is not None:
        others = {"config": config, "layers": layers, "hosts": hosts, "options": options}
        others |= {"residuals": residuals, "algorithm": None if algorithm == "auto" else algorithm}
        _check_alone(others)
        sums = _format_sums.make(accumulate, kahan, order, aps, emulate_node, len(tensors))
        return _in_format(tensors, sums, average, sequence if step is None else step)
    if kahan or order != "rank" or emulate_node != 1:
        raise ValueError(
            f"kahan={kahan}, order={order!r}, emulate_node={emulate_node} without accumulate; "
            "allowed: with accumulate=format"
        )
    if layers is not None and config is not None:
        raise ValueError("simulate takes config or layers, not both")
    first = tensors[0]
    fallback = defaults()
    if layers is None:
        plan = [(first.numel(), codec_of({} if config is None else config, fallback))]
    else:
        plan = layers_of(layers, first.numel(), fallback)
    # Not clone(), which keeps a lazily negated view lazy.
    outputs = [torch.empty(t.shape, dtype=t.dtype, device="cpu").copy_(t.detach()) for t in tensors]
    owed = _feedback(residuals, tensors, [codec for _, codec in plan if codec is not None])
    group = _group(len(tensors), hosts, options)
    with _aps.simulated(outputs, owed, plan) if aps else contextlib.nullcontext():
        answer = _C.simulate_all_reduce(
            outputs,
            plan,
            average,
            owed,
            algorithm=algorithm,
            sequence=sequence,
            **({} if step is None else {"step": step}),
            **group,
        )
    return Simulation(
        outputs=outputs,
        error=_error(outputs[0], tensors, len(tensors) if average else 1),
        bytes_sent=[one["bytes_sent"] for one in answer["stats"]],
        bytes_sent_across=[one["bytes_sent_across"] for one in answer["stats"]],
        algorithm=answer["algorithm"],
    )


def _check_switches(kahan: Any, order: Any, aps: Any, emulate_node: Any) -> None:
    """TypeError, ValueError."""
    for name, value in (("kahan", kahan), ("aps", aps)):
        if not isinstance(value, bool):
            raise TypeError(f"{name}={value!r}; allowed: True, False")
    if not isinstance(order, str) or order not in _format_sums.ORDERS:
        raise ValueError(f"order={order!r}; allowed: {', '.join(_format_sums.ORDERS)}")
    if isinstance(emulate_node, bool) or not isinstance(emulate_node, int):
        raise TypeError(f"emulate_node={emulate_node!r} is not an integer; allowed: 1 and more")
    if emulate_node < 1:
        raise ValueError(f"emulate_node={emulate_node}; allowed: 1 and more")


def _check_alone(others: dict[str, Any]) -> None:
    """ValueError for an argument that means nothing to sums in a format."""
    for name, value in others.items():
        if value is not None:
            raise ValueError(
                f"{name}={value!r} with accumulate; allowed: one of them, as sums in a format have "
                "no codec, no messages and no residuals"
            )


def _in_format(
    tensors: list[torch.Tensor], sums: _format_sums.FormatSum, average: bool, step: int
) -> Simulation:
    """`simulate` with `accumulate`."""
    first, ranks = tensors[0], len(tensors) // sums.node
    with torch.no_grad():
        total = sums.run([tensor.detach() for tensor in tensors], step)
        if average:
            total /= ranks
        result = torch.empty(first.shape, dtype=first.dtype, device="cpu").copy_(total)
    return Simulation(
        outputs=[result] * ranks,  # hundreds of copies may not fit the memory
        error=_error(result, tensors, ranks if average else 1),
        bytes_sent=[sums.sent_bytes(first, ranks)] * ranks,
        bytes_sent_across=[0] * ranks,
        algorithm="gather",
    )


def _checked(tensors: Any) -> list[torch.Tensor]:
    """The tensors of all ranks, checked."""
    if isinstance(tensors, torch.Tensor):  # also a sequence, of its rows
        raise TypeError(
            f"tensors is one tensor of shape {tuple(tensors.shape)}; allowed: a list of one tensor "
            "per rank, as in [tensor] * 8, or list(tensor) for a rank per row"
        )
    tensors = list_of("tensors", tensors, "a list of one torch.Tensor per rank")
    if not tensors:
        raise ValueError("tensors is empty; allowed: one tensor per rank, at least one")
    first = tensors[0]
    for rank, tensor in enumerate(tensors):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"tensors[{rank}] is {tensor!r}; allowed: a torch.Tensor")
        if tensor.is_nested or tensor.layout != torch.strided:
            layout = "nested" if tensor.is_nested else tensor.layout
            raise TypeError(f"tensors[{rank}] has the layout {layout}; allowed: torch.strided")
        check_storage(tensor, f"cannot be tensors[{rank}]")
        if tensor.device.type != "cpu":
            raise ValueError(f"tensors[{rank}] is on {tensor.device}; allowed: cpu")
        if (tensor.shape, tensor.dtype) != (first.shape, first.dtype):
            raise ValueError(
                f"tensors[{rank}] is {tuple(tensor.shape)} {tensor.dtype}, but tensors[0] is "
                f"{tuple(first.shape)} {first.dtype}"
            )
    if first.dtype not in COMPUTED:
        raise TypeError(f"tensors are {first.dtype}; allowed: {', '.join(map(str, COMPUTED))}")
    return tensors


def _group(ranks: int, hosts: Sequence[Any] | None, options: _C.Options | None) -> dict[str, Any]:
    """The engine's description of the simulated group."""
    if hosts is None:
        hosts = [0] * ranks
    if not isinstance(hosts, Sequence) or not all(isinstance(h, Hashable) for h in hosts):
        raise TypeError(f"hosts={hosts!r}; allowed: a list of one hashable label per tensor, None")
    if options is not None and not isinstance(options, _C.Options):
        raise TypeError(f"options={options!r}; allowed: torch_cgx.Options, None")
    if len(hosts) != ranks:
        raise ValueError(f"hosts names {len(hosts)} hosts; allowed: one per tensor, {ranks}")
    labels = {host: f"host {number}" for number, host in enumerate(dict.fromkeys(hosts))}
    return _C.simulated_group([labels[host] for host in hosts], options)


def _feedback(
    residuals: Any, tensors: list[torch.Tensor], codecs: list[_C.Codec]
) -> list[torch.Tensor]:
    """The residuals of all ranks, checked."""
    if residuals is None:
        return []
    if isinstance(residuals, torch.Tensor):  # also a sequence, of its rows
        raise TypeError("residuals is one tensor; allowed: a list of one per rank, None")
    residuals = list_of("residuals", residuals, "a list of one torch.Tensor per rank, None")
    for codec in codecs:
        _C.check_feedback(codec)
    if len(residuals) != len(tensors):
        raise ValueError(f"residuals has {len(residuals)} tensors; allowed: {len(tensors)}")
    inputs = {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel() > 0}
    for rank, residual in enumerate(residuals):
        if not isinstance(residual, torch.Tensor):
            raise TypeError(f"residuals[{rank}] is {residual!r}; allowed: a torch.Tensor")
        allowed = (torch.float32, torch.bfloat16) if rank == 0 else (residuals[0].dtype,)
        if residual.dtype not in allowed:
            names = ", ".join(map(str, allowed))
            raise TypeError(f"residuals[{rank}] is {residual.dtype}; allowed: {names}")
        check_storage(residual, f"cannot be residuals[{rank}]")
        if residual.device.type != "cpu":
            raise ValueError(f"residuals[{rank}] is on {residual.device}; allowed: cpu")
        if residual.shape != tensors[0].shape or not residual.is_contiguous():
            raise ValueError(
                f"residuals[{rank}] has the shape {tuple(residual.shape)} and the strides "
                f"{residual.stride()}; allowed: a contiguous tensor of {tuple(tensors[0].shape)}"
            )
        if residual.untyped_storage().data_ptr() in inputs:
            raise ValueError(f"residuals[{rank}] shares memory with tensors; allowed: its own")
    return residuals


def _error(result: torch.Tensor, inputs: list[torch.Tensor], divisor: int) -> dict[str, float]:
    """Of the sum of the inputs over a divisor."""
    if result.numel() == 0:
        return {"max_abs": 0.0, "relative_l2": 0.0}
    exact = torch.zeros(result.shape, dtype=torch.float64, device="cpu")
    for tensor in inputs:
        exact += tensor.detach()
    exact /= divisor
    difference = result.double() - exact
    norm = exact.norm().item()
    distance = difference.norm().item()
    relative = distance / norm if norm > 0 else (0.0 if distance == 0 else float("inf"))
    return {"max_abs": difference.abs().max().item(), "relative_l2": relative}
