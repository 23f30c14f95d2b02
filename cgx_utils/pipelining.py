"""Compressed activations and gradients between the stages of torch.distributed.pipelining.

    from cgx_utils import pipelining

    stage = PipelineStage(module, rank, 2, device)
    pipelining.compress(stage, activations={"bits": 8}, gradients={"bits": 8})
    schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=loss)

A stage gives a schedule the sends and receives of a microbatch as `P2POp`s. `compress` replaces
the values of long floating tensors in them by encoded bytes: the stage encodes when the schedule
asks for the sends, and decodes when the schedule runs the microbatch. So every schedule works, and
every backend that sends bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from cgx_utils.settings import check_min_size
from torch_cgx import _C, _config
from torch_cgx._backend import backend_of
from torch_cgx._dtypes import COMPUTED
from torch_cgx._message import Message

_METHODS = (
    "get_fwd_recv_ops",
    "get_fwd_send_ops",
    "get_bwd_recv_ops",
    "get_bwd_send_ops",
    "forward_one_chunk",
    "backward_one_chunk",
)


@dataclass
class Compressed:
    """What a stage sends. bytes_raw: of the values that were encoded; bytes_sent: of the messages
    in their place. Exact tensors (short ones, integers) count in neither.
    """

    activations: str
    gradients: str
    bytes_raw: int = 0
    bytes_sent: int = 0
    messages: int = field(default=0, repr=False)  # sent: the key of random numbers


def compress(
    stage: Any, activations: Any = None, gradients: Any = None, *, min_size: int = 1024
) -> Compressed:
    """Compresses what a stage sends to its neighbours and receives from them; call it on all ranks
    with equal arguments, on each stage, before the first step of its schedule.

    stage: a PipelineStage, or what `build_stage` returns. activations, gradients: a dict of "bits",
    "codec", ... as `config` of `torch_cgx.all_reduce`, or a codec of `torch_cgx.codecs`; None:
    exact. What it leaves open comes from the stage's group, if that is of cgx, else from the
    environment. min_size: tensors of fewer values are exact; so are tensors of
    other types than fp32, fp16 and bf16.

    A stage computes with the decoded activations, and the one that sent them with its own; the
    gradients pass the rounding as if it were not there. They keep no residual: a message belongs
    to other samples than the one before.

    Returns what is compressed, with counters of bytes. TypeError, ValueError: a bad argument, or a
    stage that is compressed already. In a step, a stage whose neighbour has other settings raises
    MismatchError.
    """
    check_min_size(min_size)
    missing = [name for name in _METHODS if not callable(getattr(stage, name, None))]
    if missing:
        raise TypeError(
            f"stage is of type {type(stage).__name__}, without {', '.join(missing)}; allowed: a "
            "stage of torch.distributed.pipelining"
        )
    if hasattr(stage, "_cgx_traffic"):
        raise ValueError("stage is compressed already; allowed: one call for each stage")
    settings = _settings(stage.group)
    codecs = {}
    for name, config in (("activations", activations), ("gradients", gradients)):
        try:
            codecs[name] = _config.codec_of(config, settings)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from None
    names = {name: "exact" if one is None else one.describe() for name, one in codecs.items()}
    compressed = Compressed(names["activations"], names["gradients"])
    there, back = codecs["activations"], codecs["gradients"]
    _run_on(stage, _Traffic(stage, there, back, min_size, compressed))
    return compressed


def _settings(group: dist.ProcessGroup | None) -> dict[str, Any]:
    try:
        return backend_of(group).settings()
    except ValueError:
        return _config.defaults()


class _Traffic:
    """The messages of a stage. waiting: by direction and microbatch, what is received."""

    def __init__(
        self,
        stage: Any,
        activations: _C.Codec | None,
        gradients: _C.Codec | None,
        min_size: int,
        counters: Compressed,
    ):
        self._codecs = {"fwd": activations, "bwd": gradients}
        self._group, self._number = stage.group, 1 + stage.stage_index
        self._min_size, self._counters = min_size, counters
        self._waiting: dict[tuple[str, int], list[tuple[Message, dist.P2POp, torch.Tensor]]] = {}

    def sends(self, way: str, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        """The same ops with encoded tensors."""
        return [self._encoded(way, op) for op in ops]

    def receives(self, way: str, chunk: int, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        """The same ops for messages, which `arrived` decodes."""
        changed, waiting = [], []
        for op in ops:
            message = self._message(way, op.tensor)
            if message is None:
                changed.append(op)
                continue
            box = torch.empty(message.size, dtype=torch.uint8, device=op.tensor.device)
            waiting.append((message, op, box))
            changed.append(_with(op, box))
        self._waiting[way, chunk] = waiting
        return changed

    def arrived(self, way: str, chunk: int) -> None:
        """The schedule has waited for the receives of a microbatch."""
        for message, op, box in self._waiting.pop((way, chunk), ()):
            sides = op.group_peer, dist.get_rank(op.group)
            with torch.no_grad():
                message.unpack(box, op.tensor.detach(), sides)

    def _encoded(self, way: str, op: dist.P2POp) -> dist.P2POp:
        message = self._message(way, op.tensor)
        if message is None:
            return op
        key = (self._counters.messages, self._number, dist.get_rank(op.group))
        with torch.no_grad():
            box = message.pack(op.tensor.detach().contiguous(), key)
        self._counters.messages += 1
        self._counters.bytes_raw += op.tensor.nbytes
        self._counters.bytes_sent += box.nbytes
        return _with(op, box)

    def _message(self, way: str, tensor: torch.Tensor) -> Message | None:
        """None: exact."""
        codec = self._codecs[way]
        if codec is None or tensor.dtype not in COMPUTED or tensor.numel() < self._min_size:
            return None
        return Message(codec, tensor.numel(), tensor.dtype)


def _with(op: dist.P2POp, tensor: torch.Tensor) -> dist.P2POp:
    return dist.P2POp(op.op, tensor, group=op.group, tag=op.tag, group_peer=op.group_peer)


def _run_on(stage: Any, traffic: _Traffic) -> None:
    """The stage's own methods, with encoded tensors on their ways out and in."""

    def wrap(name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        own = getattr(stage, name)
        setattr(stage, name, functools.wraps(own)(make(own)))

    for way, chunk in (("fwd", "forward"), ("bwd", "backward")):

        def sends(own: Callable[..., Any], way: str = way) -> Callable[..., Any]:
            return lambda number: traffic.sends(way, own(number))

        def receives(own: Callable[..., Any], way: str = way) -> Callable[..., Any]:
            return lambda number: traffic.receives(way, number, own(number))

        def runs(own: Callable[..., Any], way: str = way) -> Callable[..., Any]:
            def run(number: int, *args: Any, **given: Any) -> Any:
                traffic.arrived(way, number)
                return own(number, *args, **given)

            return run

        wrap(f"get_{way}_send_ops", sends)
        wrap(f"get_{way}_recv_ops", receives)
        wrap(f"{chunk}_one_chunk", runs)
    stage._cgx_traffic = traffic
