"""Gradients of torch's "python_reducer" (`torch._dynamo.config.optimize_ddp`), for `cgx_hook`.

In this mode, made for compiled autograd, DDP has no buckets: after each parameter's gradient is
complete, it calls the communication hook with (gradient, parameter) in place of a GradBucket, and
ignores what the hook returns. So a gradient is a bucket here, and is reduced before the next one.
The engine's calls stay out of compiled graphs: dynamo breaks the graph around them.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch._compile import _disable_dynamo

from cgx_utils.hook import reduce
from cgx_utils.owner import find_owner
from cgx_utils.state import CGXState


class _Gradient:
    """A GradBucket of one parameter."""

    def __init__(self, buffer: torch.Tensor, parameter: torch.Tensor, index: int, last: bool):
        self._buffer, self._parameter = buffer, parameter
        self._index, self._last = index, last

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def parameters(self) -> list[torch.Tensor]:
        return [self._parameter]

    def index(self) -> int:
        return self._index

    def is_last(self) -> bool:
        return self._last


class _Turn:
    """The backward pass under way. trained: the parameters that DDP reduces; expected: ids of the
    ones that get a gradient, at first all; seen: of those that have got one.
    """

    def __init__(self, trained: list[torch.Tensor]):
        self.trained = trained
        self.known = {id(parameter) for parameter in trained}
        self.expected = {id(parameter) for parameter in trained}
        self.seen: set[int] = set()
        self.group: dist.ProcessGroup | None = None


_turns: weakref.WeakKeyDictionary[CGXState, _Turn] = weakref.WeakKeyDictionary()


@_disable_dynamo
def reduce_gradient(
    state: CGXState, gradient: torch.Tensor, parameter: torch.Tensor
) -> torch.futures.Future[torch.Tensor]:
    """Averages the gradient over the group, in place. Returns a future that is done.

    All ranks reduce the same gradients, in the same order. RuntimeError: the DDP instance was not
    found.
    """
    turn = _turns.get(state)
    if turn is None or id(parameter) not in turn.known:
        turn = _turns[state] = _Turn(_trained(state, parameter))
    if id(parameter) in turn.seen:
        # The pass before this one left parameters without a gradient, and so will this one.
        turn.expected, turn.seen = turn.seen, set()
    if not turn.seen or turn.group is None:
        turn.group = state.group_of(turn.trained)
    index = len(turn.seen)
    turn.seen.add(id(parameter))
    last = turn.seen >= turn.expected
    if last:
        turn.seen = set()
    buffer = gradient
    if gradient.layout == torch.strided:
        buffer = gradient.detach().resolve_conj().contiguous().view(-1)
        if buffer.is_complex():
            buffer = torch.view_as_real(buffer)
    bucket = _Gradient(buffer, parameter, index, last)
    reduce(state, bucket, turn.group, overlaps=False).wait()
    if gradient.layout == torch.strided and buffer.data_ptr() != gradient.data_ptr():
        _write(gradient, buffer)
    done: Any = torch.futures.Future()
    done.set_result(gradient)
    return done


def _trained(state: CGXState, parameter: torch.Tensor) -> list[torch.Tensor]:
    owner = find_owner(state, [parameter])
    if owner is None:
        raise RuntimeError(
            "cgx_hook: the DistributedDataParallel instance was not found; register the CGXState "
            "with it: model.register_comm_hook(state, cgx_hook)"
        )
    return [p for p in owner._module_parameters if p.requires_grad]


def _write(gradient: torch.Tensor, buffer: torch.Tensor) -> None:
    with torch.no_grad():
        if gradient.is_complex():
            buffer = torch.view_as_complex(buffer)
        gradient.copy_(buffer.view(gradient.shape))
