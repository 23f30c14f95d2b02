"""bounded.broadcast: tensors from one rank to all others of a group.

Tensors are cut into slices of _SLICE values, the last of a tensor may be shorter. Each slice
becomes a payload, and payloads are packed into messages. A message is sent by two broadcasts: a
header of two int64 numbers (payloads, bytes; 0 payloads ends the call), and a body that holds the
lengths of the payloads, as int64, and then the payloads. The source compresses a message while the
one before it is sent; the other ranks decompress a message while they receive the next one.
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

_SLICE = 1 << 21  # values of a payload, a multiple of a block's
_MESSAGE = 1 << 20  # a message with this many bytes gets no further payload
# Most bytes of a message: less than _MESSAGE of payloads, as many of their lengths (8 bytes each),
# and one more payload: _SLICE values of complex128, and _MOST_BESIDE for headers.
_MOST_BYTES_EACH = 16
_MOST_BESIDE = 1 << 20
_IN_FLIGHT = 2  # messages that the source may have posted and not waited for


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
    have the same bits afterwards: the values of `src` are replaced by the decoded ones, too.

    target: a module (its parameters and buffers), a tensor, or nested dicts, lists and tuples of
    tensors, as `state_dict()` returns; written in place, on any device. Values that are not tensors
    are neither sent nor changed. src: a rank of the default group, as in
    torch.distributed.broadcast. group: of any backend; default: the default group. max_error,
    relative, pointwise, overrides: as in `save`; the name of a tensor is its name in the module, or
    the keys and indices that lead to it, joined by dots. Integers and bool are lossless. All ranks
    call it with equal arguments. On a rank that is not in the group, it warns and returns.

    Before anything is sent, the ranks compare names, shapes, dtypes, bounds and src. ValueError, on
    all ranks: these differ between ranks, or the arguments of a rank are not allowed; no tensor has
    changed. Not allowed are expanded tensors and tensors that partly share memory. A later error on
    one rank (out of memory, for example) is a RuntimeError on the others; some tensors are written
    then, and others are not. Errors of the group's backend are raised: a rank died or timed out.
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
            _end(channel, posted)  # Channel.together sends the error next
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
    """The payloads of all slices, in order, as lists for one message each. Replaces the tensors'
    values by the decoded ones.
    """
    message: list[torch.Tensor] = []
    size = 0
    for one, rule in tensors:
        values = Values(one)
        arguments = _arguments(values.flat, rule, one.name)
        for some in values.slices():
            payload = compress(some, **arguments)
            if any(arguments.values()):  # decoding a lossless payload would change nothing
                decompress(payload, some)
            message.append(payload)
            size += payload.numel()
            if size >= _MESSAGE:
                yield message
                message, size = [], 0
        values.finish()
    if message:
        yield message


def _arguments(flat: torch.Tensor, rule: Rule, name: str) -> dict[str, float]:
    """Arguments of `compress` for each slice: `relative` becomes a `max_error`, as it applies to
    the range of the whole tensor.
    """
    arguments = rule.arguments(flat)
    if "relative" not in arguments:
        return arguments
    reals = torch.view_as_real(flat) if flat.is_complex() else flat
    with naming(name):
        bound = bound_of(reals, *(arguments.get(kind) for kind in KINDS))
    return {"max_error": bound.value}


class Values:
    """The values of a tensor, contiguous: in its own memory, or in a copy that `finish` writes back
    to it.
    """

    def __init__(self, one: Named) -> None:
        self._tensor = one.tensor.detach()
        whole = plain(self._tensor)
        direct = whole.is_contiguous() and not (whole.is_conj() or whole.is_neg())
        self._copy = None if direct else whole.clone(memory_format=torch.contiguous_format)
        if self._copy is not None:
            self._copy = self._copy.resolve_conj().resolve_neg()
        self.flat = (whole if self._copy is None else self._copy).view(-1)

    def slices(self) -> Iterator[torch.Tensor]:
        for start in range(0, self.flat.numel(), _SLICE):
            yield self.flat[start : start + _SLICE]

    def finish(self) -> None:
        if self._copy is not None:
            plain(self._tensor).copy_(self._copy)
        if not self._tensor.is_inference():  # decoding bypasses autograd, so tell it of the write
            torch.autograd.graph.increment_version(self._tensor)


# ---- the other ranks


def _receive(channel: Channel, tensors: list[Named]) -> str | None:
    """Receives all messages. Returns None, or the name of the first tensor that was not sent: the
    source then failed, and Channel.together raises its error.
    """
    writer = _Writer(tensors)
    failed: Exception | None = None
    last: tuple[torch.Tensor, int] | None = None

    def write() -> None:
        nonlocal failed
        if last is not None and failed is None:
            try:
                writer.write(*last)
            except Exception as error:  # keep receiving: the broadcasts need all ranks
                failed = error

    header = _post_header(channel)
    while True:
        count, size = header.wait().tolist()
        if count == 0:
            break
        # The source sends the body in any case, so a failed allocation breaks the channel.
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
    """RuntimeError: a header that no source sends, so the ranks are not in the same call."""
    most = 2 * _MESSAGE + _SLICE * _MOST_BYTES_EACH + _MOST_BESIDE
    if not 0 < 8 * count <= size <= most:
        raise RuntimeError(
            f"rank {src} announces a message of {count} payloads and {size} bytes, allowed: 8 "
            f"bytes for each payload, {most} in all: the ranks are not in the same call"
        )


class _Writer:
    """Decodes the payloads of messages, in order, into the tensors."""

    def __init__(self, tensors: list[Named]) -> None:
        self._name = ""
        self._slices = self._all(tensors)

    def _all(self, tensors: list[Named]) -> Iterator[torch.Tensor]:
        for one in tensors:
            self._name = one.name
            values = Values(one)
            yield from values.slices()
            values.finish()

    def write(self, body: torch.Tensor, count: int) -> None:
        sizes = body[: 8 * count].view(torch.int64).tolist()
        for payload in body[8 * count :].split(sizes):
            some = next(self._slices)
            with naming(self._name):
                decompress(payload, some)

    def finish(self) -> str | None:
        """None, or the name of the first tensor that is not complete."""
        return None if next(self._slices, None) is None else self._name
