"""Custom collectives of FSDP2: some parameters of a flat buffer are compressed, others are exact.

The compressed parameters of a buffer are copied into one tensor and the exact ones into another,
and each tensor gets a collective. So norms and biases stay exact beside compressed parameters, at
the cost of a second message and another pass over the values. A buffer with parameters of one kind
is not copied. Quantization buckets begin with the first compressed value of a shard; a bucket may
hold values of two neighbouring parameters.

The classes have the methods of torch's `AllGather` and `ReduceScatter`, whose module is private.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

import torch_cgx
from cgx_utils.fsdp_layout import Run, Unit
from cgx_utils.fsdp_steps import StepsOfUnits
from torch_cgx._backend import backend_of
from torch_cgx._warnings import warn

if TYPE_CHECKING:
    from torch_cgx._C import Codec

EXACT = {"bits": 32}  # whatever the group's options say


class _Collective:
    def __init__(self, unit: Unit, codec: Codec | None):
        self._unit = unit
        self._codec = codec

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def _config(self, compressed: bool) -> Any:
        return self._codec if compressed and self._codec is not None else EXACT


class CompressedAllGather(_Collective):
    """Gathers weights. Every rank gets the decoded values, the owner of a shard too; the owner's
    sharded parameter stays as it is.
    """

    _checked = False

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        unit, ranks = self._unit, group.size()
        if ranks != unit.shard_group.size():
            # reshard_after_forward=N: backward gathers what forward has decoded, on fewer ranks.
            return torch_cgx.all_gather_single(
                output_tensor, input_tensor, group, config=EXACT, async_op=async_op
            )
        runs = self._runs(input_tensor)
        whole = output_tensor.view(ranks, -1)
        works: list[tuple[dist.Work | None, Callable[[], None]]] = []
        for compressed in (True, False):
            mine = [run for run in runs if run.compressed is compressed]
            if not mine:
                continue
            shard = _packed(input_tensor, mine)
            gathered = output_tensor
            if shard is not input_tensor:
                gathered = shard.new_empty(ranks * shard.numel())
            work = torch_cgx.all_gather_single(
                gathered, shard, group, config=self._config(compressed), async_op=True
            )
            works.append((work, _unpacking(gathered.view(ranks, -1), whole, mine)))
        return _finish(works, async_op)

    def _runs(self, shard: torch.Tensor) -> list[Run]:
        unit = self._unit
        label = type(unit.module).__name__
        if shard.dtype == torch.uint8:
            dtypes = sorted({str(p.dtype) for p in unit.parameters})
            raise TypeError(
                f"cgx_utils.fsdp: the parameters of {label} have the dtypes {', '.join(dtypes)}, "
                "and are gathered as bytes; allowed: one dtype, as by "
                "MixedPrecisionPolicy(param_dtype=torch.bfloat16)"
            )
        found = sum(unit.numels())
        if shard.numel() != found:
            raise RuntimeError(
                f"cgx_utils.fsdp: a shard of {label} is gathered as {shard.numel()} values, its "
                f"parameters have {found}; parameters with an extension (float8) are not supported"
            )
        if not self._checked:
            unit.check(shard)
            self._checked = True
        return unit.runs()


class CompressedReduceScatter(_Collective):
    """Reduce-scatters gradients: sums in fp32, one rounding of each rank's contribution."""

    def __init__(self, unit: Unit, codec: Codec | None, steps: StepsOfUnits):
        super().__init__(unit, codec)
        self._steps = steps

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        check_op(op)
        ranks = group.size()
        runs = runs_of_gradients(self._unit, output_tensor.numel())
        whole = input_tensor.view(ranks, -1)
        works: list[tuple[dist.Work | None, Callable[[], None]]] = []
        for compressed in (True, False):
            mine = [run for run in runs if run.compressed is compressed]
            if not mine:
                continue
            packed = _packed(whole, mine).view(-1)
            shard = output_tensor
            if packed.numel() != input_tensor.numel():
                shard = output_tensor.new_empty(packed.numel() // ranks)
            if compressed and self._codec is not None:
                backend = backend_of(group, packed.device)
                key = self._steps.reduction(self._unit, group)
                work: Any = backend.reduce_scatter_codec(shard, packed, op, self._codec, **key)
            else:
                work = torch_cgx.reduce_scatter_single(
                    shard, packed, op, group, config=EXACT, async_op=True
                )
            works.append((work, _unpacking(shard, output_tensor, mine)))
        return _finish(works, async_op)


class ReplicaAllReduce:
    """The hook that averages a unit's reduced shard over its replicas, in one message."""

    def __init__(
        self, unit: Unit, codec: Codec | None, group: dist.ProcessGroup, steps: StepsOfUnits
    ):
        self._unit = unit
        self._codec = codec
        self._group = group
        self._steps = steps

    def __call__(self, shard: torch.Tensor) -> None:
        runs = runs_of_gradients(self._unit, shard.numel())
        layers = [(run.numel, self._codec if run.compressed else None) for run in runs]
        backend = backend_of(self._group, shard.device)
        key = self._steps.replicas(self._unit, self._group)
        backend.all_reduce_layers(shard, dist.ReduceOp.AVG, layers, False, **key).wait()


def runs_of_gradients(unit: Unit, numel: int) -> list[Run]:
    """The runs of a reduced shard of `numel` values; one exact run, with a warning, if not all
    parameters have a gradient: a buffer does not say which ones it holds.
    """
    found = sum(unit.numels(trained=True))
    if numel == found:
        return unit.runs(trained=True)
    if not unit.warned:
        unit.warned = True
        warn(
            f"cgx_utils.fsdp: a backward pass left parameters of {type(unit.module).__name__} "
            f"without gradients (a shard of {numel} values instead of {found}): its gradients "
            "are reduced exactly in such steps. set_reduce_scatter_unused_params(True), where "
            "torch has it, sends zeros for them; or apply fully_shard to modules that are used as "
            "a whole"
        )
    return [Run(0, numel, False)]


def check_op(op: Any) -> None:
    """ValueError for a reduction other than SUM and AVG."""
    if op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        return
    raise ValueError(
        f"cgx_utils.fsdp: reduce-scatter with {op!r}; allowed: SUM, AVG. A gradient divide factor "
        "needs set_force_sum_reduction_for_comms(True)"
    )


def _packed(tensor: torch.Tensor, runs: list[Run]) -> torch.Tensor:
    """The values of the runs of the last dimension, one behind the other; `tensor` itself where the
    runs are all of it.
    """
    if len(runs) == 1 and runs[0].numel == tensor.shape[-1]:
        return tensor
    return torch.cat([tensor[..., run.offset : run.offset + run.numel] for run in runs], dim=-1)


def _unpacking(packed: torch.Tensor, tensor: torch.Tensor, runs: list[Run]) -> Callable[[], None]:
    """Undoes `_packed`, into `tensor`, when it is called."""

    def unpack() -> None:
        if packed.data_ptr() == tensor.data_ptr():
            return
        offset = 0
        for run in runs:
            values = packed[..., offset : offset + run.numel]
            tensor[..., run.offset : run.offset + run.numel].copy_(values)
            offset += run.numel

    return unpack


class _Unpacked(dist.Work):
    """Done when all works are, and their values are where they belong."""

    def __init__(self, works: list[tuple[dist.Work | None, Callable[[], None]]]):
        super().__init__()
        self._works = works

    def wait(self, timeout: Any = None) -> bool:
        works, self._works = self._works, []
        for work, unpack in works:
            if work is not None:
                work.wait()
            unpack()
        return True


def _finish(
    works: list[tuple[dist.Work | None, Callable[[], None]]], async_op: bool
) -> dist.Work | None:
    whole = _Unpacked(works)
    if async_op:
        return whole
    whole.wait()
    return None
