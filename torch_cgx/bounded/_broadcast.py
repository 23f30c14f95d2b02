"""bounded.broadcast: tensors from one rank to all others of a group.

Tensors are cut into chunks of equal numbers of values, each a payload, and payloads are packed into
messages: an int64 header of two numbers (payloads, bytes; 0 payloads ends the call), then the
lengths of the payloads, as int64, and the payloads. The source compresses a message while the one
before it travels; the others decompress a message while the next one arrives.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from torch_cgx._threads import safe_after_fork
from torch_cgx._warnings import warn
from torch_cgx.bounded import _dtypes, _entropy
from torch_cgx.bounded._agreement import Channel, Posted
from torch_cgx.bounded._bound import bound_of
from torch_cgx.bounded._compress import compress
from torch_cgx.bounded._decompress import decompress
from torch_cgx.bounded._named import Named, Tensors, join, naming, plain
from torch_cgx.bounded._overlap import check_writable
from torch_cgx.bounded._rules import KINDS, Overrides, Rule, Rules

_CHUNK = 1 << 21  # values of a payload: whole blocks
_MESSAGE = 1 << 20  # bytes from which a message is not filled further
# A message has less than _MESSAGE bytes of payloads, no more of their lengths (8 bytes each), and
# one payload more: values of complex128, and headers.
_MOST_BYTES_EACH = 16
_MOST_BESIDE = 1 << 20
_IN_FLIGHT = 2  # messages that the source has posted and not waited for


@safe_after_fork
def broadcast(
    target: Any,
    src: int = 0,
    *,
    max_error: float | None = None,
    relative: float | None = None,
    pointwise: float | None = None,
    overrides: Overrides | None = None,
    group: Any = None,
) -> None:
    """Sends the tensors of rank `src` to all ranks of a group, compressed within a bound. All ranks
    have the same bits afterwards, `src` included: its values become what the others got.

    target: a module (its parameters and buffers), a tensor, or nested dicts, lists and tuples of
    tensors, as `state_dict()` returns; written in place, on any device. What is not a tensor is
    neither sent nor changed. src: a rank of the default group, as in torch.distributed.broadcast.
    group: of any backend; default: the default group. max_error, relative, pointwise, overrides: as
    in `save`; names are those of parameters and buffers, or what leads to a tensor, joined by dots.
    Whole numbers and bool are lossless. All ranks call it with equal arguments. A rank that is not
    in the group is warned, and nothing happens.

    Before anything is sent, ranks compare names, shapes, dtypes, bounds and src. ValueError, on all
    ranks: they differ, or one of them was called with bad arguments; nothing has changed then.
    Tensors that share memory partly, and expanded ones, are bad arguments. An error of one rank
    later on (of memory, say) is a RuntimeError on the others; tensors hold a part of what was sent
    then. Errors of the group's backend: a rank died or timed out.
    """
    import torch.distributed as dist

    if dist.get_rank(group) < 0:
        warn("bounded.broadcast does nothing on a rank that is not in the given group")
        return
    channel = Channel(group, src)
    tensors: list[tuple[Named, Rule]] = []
    with channel.together("bounded.broadcast", ValueError) as agreed:
        channel.check_source()
        rules = Rules.of(max_error, relative, pointwise, overrides)
        found = _tensors_of(target)
        check_writable(found.all)
        rules.warn_of_unused(found.names)
        tensors = [(one, rules.rule_of_all(one.names)) for one in found.all]
        _entropy.library()
        agreed.lines = [
            f"src is {channel.src}",
            *(_description(one, rule) for one, rule in tensors),
        ]
    left = None
    with channel.together("bounded.broadcast", RuntimeError):
        if channel.is_source:
            _send(channel, tensors)
        else:
            left = _receive(channel, [one for one, _ in tensors])
    if left is not None:
        raise RuntimeError(f"{left}: rank {src} has not sent it")


def _tensors_of(target: Any) -> Tensors:
    found = Tensors()
    if isinstance(target, torch.nn.Module):
        for name, parameter in target.named_parameters(remove_duplicate=False):
            found.add(parameter, name)
        for name, buffer in target.named_buffers(remove_duplicate=False):
            found.add(buffer, name)
    else:
        _collect(target, "", found)
    return found


def _collect(value: Any, name: str, found: Tensors) -> None:
    if isinstance(value, torch.Tensor):
        found.add(value, name)
    elif isinstance(value, dict):
        for key, item in value.items():
            _collect(item, join(name, key), found)
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            _collect(item, join(name, i), found)
    elif not name:
        raise TypeError(
            f"the target is a {type(value).__name__}; allowed: a module, a tensor, nested dicts, "
            "lists and tuples of tensors"
        )


def _description(one: Named, rule: Rule) -> str:
    tensor = one.tensor
    exact = not rule.arguments(plain(tensor))
    bound = "lossless" if exact else str(rule)
    names = " = ".join(one.names) or "the tensor"
    return f"{names} is {_dtypes.name(tensor.dtype)} {list(tensor.shape)}, {bound}"


# ---- the source


def _send(channel: Channel, tensors: list[tuple[Named, Rule]]) -> None:
    posted: collections.deque[list[Posted]] = collections.deque()
    try:
        for message in _messages(tensors):
            table = _int64([one.numel() for one in message])
            body = torch.cat([table.view(torch.uint8), *message])
            header = _int64([len(message), body.numel()])
            posted.append([channel.post(header), channel.post(body)])
            if len(posted) > _IN_FLIGHT:
                _wait(posted.popleft())
    except Exception:
        if not channel.broken:
            _end(channel, posted)  # the ranks exchange the error next
        raise
    _end(channel, posted)


def _int64(numbers: list[int]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")


def _end(channel: Channel, posted: Iterable[list[Posted]]) -> None:
    last = channel.post(_int64([0, 0]))
    for works in posted:
        _wait(works)
    last.wait()


def _wait(works: list[Posted]) -> None:
    for work in works:
        work.wait()


def _messages(tensors: list[tuple[Named, Rule]]) -> Iterator[list[torch.Tensor]]:
    """Payloads of the chunks of all tensors, in order; the values of the tensors become theirs."""
    message: list[torch.Tensor] = []
    size = 0
    for one, rule in tensors:
        values = Values(one)
        arguments = _arguments(values.flat, rule, one.name)
        for chunk in values.chunks():
            payload = compress(chunk, **arguments)
            if any(arguments.values()):  # what is lossless has these bits already
                decompress(payload, chunk)
            message.append(payload)
            size += payload.numel()
            if size >= _MESSAGE:
                yield message
                message, size = [], 0
        values.finish()
    if message:
        yield message


def _arguments(flat: torch.Tensor, rule: Rule, name: str) -> dict[str, float]:
    """Arguments of `compress` for chunks: `relative` is of the range of the whole tensor."""
    arguments = rule.arguments(flat)
    if "relative" not in arguments:
        return arguments
    parts = torch.view_as_real(flat) if flat.is_complex() else flat
    with naming(name):
        bound = bound_of(parts, *(arguments.get(kind) for kind in KINDS))
    return {"max_error": bound.value}


class Values:
    """The values of a tensor in one piece: of it, or of a copy that `finish` writes back."""

    def __init__(self, one: Named) -> None:
        self._tensor = one.tensor.detach()
        whole = plain(self._tensor)
        direct = whole.is_contiguous() and not (whole.is_conj() or whole.is_neg())
        self._copy = None if direct else whole.clone(memory_format=torch.contiguous_format)
        if self._copy is not None:
            self._copy = self._copy.resolve_conj().resolve_neg()
        self.flat = (whole if self._copy is None else self._copy).view(-1)

    def chunks(self) -> Iterator[torch.Tensor]:
        for start in range(0, self.flat.numel(), _CHUNK):
            yield self.flat[start : start + _CHUNK]

    def finish(self) -> None:
        if self._copy is not None:
            plain(self._tensor).copy_(self._copy)
        if not self._tensor.is_inference():  # decoding goes past autograd, which is to notice
            torch.autograd.graph.increment_version(self._tensor)


# ---- the others


def _receive(channel: Channel, tensors: list[Named]) -> str | None:
    """Name of the first tensor that was not sent: the source had an error, which it tells next."""
    writer = _Writer(tensors)
    failed: Exception | None = None
    last: tuple[torch.Tensor, int] | None = None

    def write() -> None:
        nonlocal failed
        if last is not None and failed is None:
            try:
                writer.write(*last)
            except Exception as error:  # and go on: the others count on this rank
                failed = error

    header = _post_header(channel)
    while True:
        count, size = header.wait().tolist()
        if count == 0:
            break
        # The source sends it in any case: a rank without room for it cannot go on with the others.
        with channel.communicating():
            _check_size(count, size, channel.src)
            room = torch.empty(size, dtype=torch.uint8, device="cpu")
        body = channel.post(room)
        header = _post_header(channel)
        write()
        last = body.wait(), count
    write()
    if failed is not None:
        raise failed
    return writer.finish()


def _post_header(channel: Channel) -> Posted:
    return channel.post(torch.zeros(2, dtype=torch.int64, device="cpu"))


def _check_size(count: int, size: int, src: int) -> None:
    """RuntimeError: no message has this header, so the ranks are not in the same call."""
    most = 2 * _MESSAGE + _CHUNK * _MOST_BYTES_EACH + _MOST_BESIDE
    if not 0 < 8 * count <= size <= most:
        raise RuntimeError(
            f"rank {src} announces a message of {count} payloads and {size} bytes, allowed: 8 "
            f"bytes for each payload, {most} in all: the ranks are not in the same call"
        )


class _Writer:
    """Writes the payloads of messages, in order, to the tensors."""

    def __init__(self, tensors: list[Named]) -> None:
        self._name = ""
        self._chunks = self._all(tensors)

    def _all(self, tensors: list[Named]) -> Iterator[torch.Tensor]:
        for one in tensors:
            self._name = one.name
            values = Values(one)
            yield from values.chunks()
            values.finish()

    def write(self, body: torch.Tensor, count: int) -> None:
        sizes = body[: 8 * count].view(torch.int64).tolist()
        for payload in body[8 * count :].split(sizes):
            chunk = next(self._chunks)
            with naming(self._name):
                decompress(payload, chunk)

    def finish(self) -> str | None:
        """Name of the first tensor that is not complete."""
        return None if next(self._chunks, None) is None else self._name
