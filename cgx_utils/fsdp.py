"""Compressed collectives of FSDP2: gradients and weights of `fully_shard` modules.

from cgx_utils import fsdp

for block in model.blocks:
    fully_shard(block)
fully_shard(model)
fsdp.compress(model, gradients={"bits": 4}, weights={"bits": 8})
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from cgx_utils.defaults import Defaults
from cgx_utils.fsdp_layout import Unit, units_of
from cgx_utils.fsdp_steps import StepsOfUnits
from cgx_utils.settings import check_min_size
from cgx_utils.summary import Decision, Summary
from torch_cgx import _config
from torch_cgx._policy.rules import Policy
from torch_cgx._renamed import takes_old_names
from torch_cgx._warnings import say, warn

if TYPE_CHECKING:
    from torch_cgx._C import Codec, ProcessGroupCGX

WEIGHT_BITS = 8  # where `weights` leaves them open
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Compressed:
    """What `compress` has set up. gradients, weights: None where nothing was asked for.

    Its state_dict() counts the reductions, which key random numbers ("rounding": "stochastic",
    "rotated", "trellis"): a training whose checkpoints hold it goes on bit for bit. It may be given
    to torch.distributed.checkpoint.
    """

    gradients: Summary | None
    weights: Summary | None
    steps: StepsOfUnits = field(repr=False, compare=False)

    def __str__(self) -> str:
        """As in "gradients: compressing 26 of 54 parameters, ...; weights: ..."."""
        both = {"gradients": self.gradients, "weights": self.weights}
        return "; ".join(f"{name}: {one}" for name, one in both.items() if one is not None)

    def state_dict(self) -> dict[str, Any]:
        """{"version": 1, "units": the first parameter's name of each `fully_shard` module,
        "reductions": how often their gradients were reduced, "number": of this object among those
        that reduce over its group}; plain Python objects, equal on all ranks.
        """
        return self.steps.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state_dict() of the same model; on all ranks. TypeError and ValueError
        name what does not fit.
        """
        self.steps.load_state_dict(state)


@takes_old_names("cgx_utils.fsdp.compress", min_size="layer_min_size")
def compress(
    model: torch.nn.Module,
    gradients: Any = None,
    weights: Any = None,
    *,
    min_size: int = 1024,
    layer_filter: Any = None,
    replicas: dist.ProcessGroup | str | None = None,
) -> Compressed:
    """Compresses the reduce-scatters of gradients and the all-gathers of weights of every
    `fully_shard` module in `model`; call it once, after `fully_shard`, on every rank.

    A parameter is compressed if it has more than one dimension and at least max(min_size,
    CGX_COMPRESSION_MINIMAL_SIZE) values in all ranks' shards together; biases, norms and small
    parameters are exact, in a message of their own beside the compressed one.

    gradients: a dict of "bits", "codec", ... as in `CGXState`, a codec of `torch_cgx.codecs`, or
        None for no change. Open keys: the group's options, else the environment, else 4 bits.
    weights: likewise; 8 bits if they are open. All ranks, the owner of a shard included, compute
        with the same decoded weights, while the owner's sharded parameter and optimizer state stay
        exact. The codes must not depend on the call (no stochastic rounding, no rotation):
        backward gathers again, and has to get what forward got.
    layer_filter: as in `CGXState`; it replaces the rule about dimensions. Any name of a tied
        parameter selects it.
    replicas: of HSDP. A group: the reduced shards are averaged over it, in one message with norms
        and small parameters exact; the model is sharded on a mesh of one dimension then
        (`fully_shard(model, mesh=mesh["shard"])`, `replicas=mesh.get_group("replicate")`).
        None: a model on a mesh of two dimensions leaves its all-reduce to torch, so the replica
        group needs options with bits, which apply to all values, norms included. "exact":
        leaves it exact.

    fp32, fp16 and bf16; `MixedPrecisionPolicy`, `CPUOffloadPolicy`, `reshard_after_forward` (a
    number too: the second gather is exact then), accumulation without synchronisation, shards of
    unequal size. Nothing is compressed on a group of one rank. With `set_gradient_divide_factor`,
    `set_force_sum_reduction_for_comms(True)` is needed; with `replicas` the factor counts the ranks
    of the shard group, and is applied to the mean over the replicas.

    Returns what is compressed; rank 0 of the shard group also writes it on stderr, unless the
    option `log` is off, or warns that nothing is. ValueError and TypeError name a bad argument, a
    group that is not of cgx, or what this torch lacks, before anything is changed or sent.
    """
    check_min_size(min_size)
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is of type {type(model).__name__}; allowed: torch.nn.Module")
    if gradients is None and weights is None:
        raise ValueError("neither gradients nor weights is given; allowed: at least one of them")
    units = units_of(model)
    wanted = {
        "set_custom_reduce_scatter": gradients,
        "set_custom_all_gather": weights,
        "set_all_reduce_hook": replicas,
    }
    _check_methods(*(name for name, asked in wanted.items() if asked is not None))
    backend = _backend(units)
    defaults = Defaults()
    gradient_codec = _codec("gradients", gradients, backend, defaults)
    weight_codec = _codec("weights", weights, backend, defaults)
    if weight_codec is not None and _depends_on_call(weight_codec):
        raise ValueError(
            f"weights={weights!r}: the codes depend on the number of the call, so backward would "
            "get other weights than forward; allowed: 'maxmin' with rounding='nearest', 16 bits"
        )
    if replicas is not None and gradients is None:
        raise ValueError(f"replicas={replicas!r} without gradients; allowed: None")
    if gradients is not None:
        _check_replicas(units, replicas)
    _check_dtypes(units)
    policy = Policy(max(min_size, _config.minimal_size()), {}, layer_filter)
    if policy.needs_names:
        policy.warn_of_unused([o for unit in units for o in unit.named], "cgx_utils.fsdp")
    reasons = [_choose(policy, unit) for unit in units]
    from cgx_utils.fsdp_comm import CompressedAllGather, CompressedReduceScatter, ReplicaAllReduce

    steps = StepsOfUnits(units)
    for unit in units:
        module: Any = unit.module
        if gradients is not None:
            module.set_custom_reduce_scatter(CompressedReduceScatter(unit, gradient_codec, steps))
        if weights is not None:
            module.set_custom_all_gather(CompressedAllGather(unit, weight_codec))
        if isinstance(replicas, dist.ProcessGroup):
            module.set_all_reduce_hook(ReplicaAllReduce(unit, gradient_codec, replicas, steps))
    found = Compressed(
        None if gradients is None else _summary(units, reasons, gradient_codec, backend, False),
        None if weights is None else _summary(units, reasons, weight_codec, backend, True),
        steps,
    )
    _report(found, backend)
    return found


def _check_methods(*wanted: str) -> None:
    """RuntimeError if this torch lacks one of these methods of FSDPModule."""
    missing = [name for name in wanted if not hasattr(FSDPModule, name)]
    if missing:
        raise RuntimeError(
            f"torch {torch.__version__} has no FSDPModule.{missing[0]}; needed: torch 2.11 to "
            "2.14. torch_cgx.Options(bits=..., collectives=...) of the group compress whole buffers"
        )


def _backend(units: list[Unit]) -> ProcessGroupCGX:
    """The engine of the first unit's shard group; ValueError unless all units' groups are cgx."""
    from torch_cgx._backend import backend_of

    found = []
    for unit in units:
        try:
            found.append(backend_of(unit.shard_group, unit.group.device))
        except ValueError as error:
            label = type(unit.module).__name__
            raise ValueError(f"cgx_utils.fsdp needs a cgx group: {label}: {error}") from None
    return found[0]


def _codec(name: str, config: Any, backend: ProcessGroupCGX, defaults: Defaults) -> Codec | None:
    """The engine's codec of `gradients` or `weights`; None for exact."""
    if not isinstance(config, Mapping):
        try:
            return _config.codec_of(config, backend.settings())
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
    given = _config.check_dict(config, name)
    if name == "weights" and "bits" not in given and given.get("codec") not in _config.HALVES:
        given["bits"] = WEIGHT_BITS
    full = defaults.values(given, backend)
    return None if _config.is_exact(full["bits"]) else _config.codec_of(full, full)


def _check_replicas(units: list[Unit], replicas: Any) -> None:
    from torch_cgx._backend import backend_of

    allowed = "a ProcessGroup, 'exact', None"
    if isinstance(replicas, str) and replicas != "exact":
        raise ValueError(f"replicas={replicas!r}; allowed: {allowed}")
    if replicas is not None and not isinstance(replicas, (str, dist.ProcessGroup)):
        raise TypeError(
            f"replicas={replicas!r} is of type {type(replicas).__name__}; allowed: {allowed}"
        )
    if isinstance(replicas, dist.ProcessGroup):
        try:
            backend_of(replicas, units[0].group.device)
        except ValueError as error:
            raise ValueError(f"replicas: {error}") from None
    for unit in units:
        own = unit.replica_group
        label = type(unit.module).__name__
        if own is not None and isinstance(replicas, dist.ProcessGroup):
            raise ValueError(
                f"replicas is a group, but {label} is on a mesh of two dimensions, whose replicas "
                "torch averages itself; allowed: None, 'exact', or fully_shard on the mesh's shard "
                'dimension alone, as mesh["shard"]'
            )
        if own is None and replicas == "exact":
            raise ValueError(f"replicas='exact', but {label} has no replicas; allowed: None")
        if own is None or replicas == "exact":
            continue
        try:
            bits = backend_of(own, unit.group.device).settings()["bits"]
        except ValueError:
            bits = _config.EXACT_BITS
        if _config.is_exact(bits):
            raise ValueError(
                f"{label} is on a mesh of two dimensions, and the group of its replicas does not "
                "compress: fully_shard(model, mesh=mesh['shard']) with "
                "replicas=mesh.get_group('replicate') compresses and keeps norms exact; "
                "backend_override={'replicate': ('cgx', torch_cgx.Options(bits=4))} of "
                "init_device_mesh compresses all values; replicas='exact' leaves it exact"
            )


def _check_dtypes(units: list[Unit]) -> None:
    for unit in units:
        policy = unit.group.mp_policy
        for name, parameter in zip(unit.names, unit.parameters, strict=True):
            for dtype in {policy.param_dtype or parameter.dtype, policy.reduce_dtype}:
                if dtype is not None and dtype not in _DTYPES:
                    raise TypeError(
                        f"parameter {name!r} is gathered or reduced as {dtype}; allowed: "
                        "torch.float32, torch.float16, torch.bfloat16"
                    )


def _choose(policy: Policy, unit: Unit) -> list[str]:
    """Decides which of a unit's parameters are compressed; the reasons of the others."""
    reasons = []
    for number, (one, parameter) in enumerate(zip(unit.named, unit.parameters, strict=True)):
        config, why = policy.decide(one, parameter)
        unit.compressed[number] = config is not None
        reasons.append(why)
    return reasons


def _summary(
    units: list[Unit],
    reasons: list[list[str]],
    codec: Codec | None,
    backend: ProcessGroupCGX,
    frozen: bool,
) -> Summary:
    """frozen: whether parameters without gradients count: their weights travel, too."""
    decisions = []
    for unit, why in zip(units, reasons, strict=True):
        for parameter, compressed, reason in zip(
            unit.parameters, unit.compressed, why, strict=True
        ):
            if not frozen and not parameter.requires_grad:
                continue
            chosen = codec if compressed else None
            reason = reason or ("" if chosen else "bits=32")
            decisions.append(Decision(parameter.numel(), parameter.dtype, chosen, reason))
    return Summary(decisions, backend.stats()["communicator"], ranks=backend.size())


def _report(found: Compressed, backend: ProcessGroupCGX) -> None:
    if backend.rank() != 0:
        return
    for name, summary in (("gradients", found.gradients), ("weights", found.weights)):
        if summary is None:
            continue
        if not summary.compresses:
            warn(f"cgx: {name}: {summary}")
        elif backend.settings()["log"] != "off":
            say(f"{name}: {summary}")


def _depends_on_call(codec: Codec) -> bool:
    """Whether another call encodes equal values into other bytes."""
    values = torch.linspace(-1.0, 1.0, 4096, dtype=torch.float32, device="cpu").square_()
    first, second = (codec.encode(values, sequence, 0, 0, None) for sequence in (0, 1))
    return not torch.equal(first, second)
