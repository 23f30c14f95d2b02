"""Storages whose values are kept as payloads, and what the autograd nodes hold in their place.

A source is a storage that at least one node has saved. Its parts are regions of it with a payload.
A handle is what one node holds: a part, and the view of it that the node saved. While handles of a
source wait to be unpacked in a backward pass, what was decoded for one of them serves the others.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from torch_cgx.activations.saved.views import Region

_SAMPLE = 16  # values of a storage that show whether it has changed
Decode = Callable[[], torch.Tensor]


class Version:
    """Tells whether a tensor was changed in place after it was saved: shares its version counter,
    and nothing of its memory.
    """

    __slots__ = ("_expected", "_node", "_probe", "_shape", "_type")

    def __init__(self, tensor: torch.Tensor):
        probe = tensor.detach()
        probe.data = tensor.new_empty(0)
        self._probe, self._expected = probe, tensor._version
        self._shape, self._type = list(tensor.shape), tensor.type()
        self._node = tensor.grad_fn.name() if tensor.grad_fn is not None else None

    def check(self) -> None:
        """torch's own error, with its words."""
        version = self._probe._version
        if version == self._expected:
            return
        made = "" if self._node is None else f", which is output 0 of {self._node},"
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: [{self._type} {self._shape}]{made} is at version {version}; expected "
            f"version {self._expected} instead. Hint: enable anomaly detection to find the "
            "operation that failed to compute its gradient, with "
            "torch.autograd.set_detect_anomaly(True)."
        )


class Part:
    """A region with its payload, which settle() makes. fill(): what decodes the values, in one
    dimension, and the payload, None where all values are equal; None where there shall be none.
    """

    # activations.memory finds the payload by its attribute: it does not look into functions.
    __slots__ = ("__weakref__", "_decode", "_fill", "payload", "region")

    def __init__(
        self, region: Region, fill: functools.partial[tuple[Decode, torch.Tensor | None] | None]
    ):
        self.region = region
        self._fill: functools.partial[Any] | None = fill
        self._decode: Decode | None = None
        # Until then the values themselves.
        self.payload: torch.Tensor | None = fill.args[0]

    def settle(self) -> bool:
        """False where the values stay as they are."""
        fill, self._fill = self._fill, None
        if fill is not None and (made := fill()) is not None:
            self._decode, self.payload = made
        return self._decode is not None

    def decode(self) -> torch.Tensor:
        if self.settle():
            assert self._decode is not None
            return self._decode()
        assert self.payload is not None
        return self.payload.reshape(-1)


class Source:
    """A storage, as values of one dtype and one version."""

    def __init__(self, tensor: torch.Tensor):
        # While this lives, no other storage gets the address of this one's record.
        self.storage = StorageWeakRef(tensor.untyped_storage())
        self._sample = _sample_of(tensor)
        self.parts: list[Part] = []
        self._like = tensor.new_empty(0)
        self._lock = threading.Lock()
        self._waiting: set[int] = set()  # handles that no backward pass has unpacked yet
        self._handles: set[int] = set()
        self._twin: torch.Tensor | None = None  # memory of decoded values
        self._first = 0  # element of the storage that the twin begins with
        self._decoded: set[int] = set()  # parts whose values the twin holds

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor still has the values that the payloads encode. A sample of the storage
        is compared, since a change through `.data` counts no version.
        """
        return not self.storage.expired() and self._sample == _sample_of(tensor)

    def part_for(self, region: Region) -> Part | None:
        """A part that has all elements of a region."""
        for part in self.parts:
            if part.region == region or part.region.contains(region):
                return part
        return None

    def add(self, handle: int) -> None:
        self._handles.add(handle)
        self._waiting.add(handle)

    def drop(self, handle: int) -> None:
        """A node has gone. Called by destructors: takes no lock."""
        self._handles.discard(handle)
        self._waiting.discard(handle)
        if not self._waiting:
            self._twin = None

    def view(
        self, handle: int, part: Part, size: torch.Size, stride: tuple[int, ...], offset: int
    ) -> torch.Tensor:
        """The values of a handle's view."""
        with self._lock:
            twin = self._twin
            if twin is None or id(part) not in self._decoded or self._outside(part, twin):
                twin = self._decode(part, twin)
            result = twin.as_strided(size, stride, offset - self._first)
            self._waiting.discard(handle)
            if self._waiting:
                self._twin = twin
            else:  # the next backward pass through a graph that was retained decodes again
                self._twin = None
                self._waiting = set(self._handles)
        return result

    def _outside(self, part: Part, twin: torch.Tensor) -> bool:
        return part.region.offset < self._first or part.region.end > self._first + twin.numel()

    def _decode(self, part: Part, twin: torch.Tensor | None) -> torch.Tensor:
        """Memory that holds the values of the part, and of what it held before."""
        if twin is None or self._outside(part, twin):
            self._decoded = set()
            whole = part.region.dense and len(self.parts) == 1
            if whole:
                self._first, self._decoded = part.region.offset, {id(part)}
                return part.decode()
            self._first = min(one.region.offset for one in self.parts)
            end = max(one.region.end for one in self.parts)
            twin = self._like.new_empty(end - self._first)
        region = part.region
        place = twin.as_strided(region.sizes, region.strides, region.offset - self._first)
        place.copy_(part.decode().view(region.sizes))
        self._decoded.add(id(part))
        return twin


def _sample_of(tensor: torch.Tensor) -> list[Any]:
    """Some values of the tensor's storage; none on a GPU, whose host would wait for them."""
    if tensor.device.type != "cpu":
        return []
    whole = tensor.untyped_storage().nbytes() // tensor.itemsize
    step = max(1, (whole - 1) // (_SAMPLE - 1))
    found = tensor.detach().as_strided((min(_SAMPLE, whole),), (step,), 0)
    return list(map(repr, found.tolist()))  # NaN is equal to itself


class Handle:
    """What a node holds of a tensor that is kept as a payload."""

    __slots__ = ("_offset", "_part", "_size", "_source", "_stride", "_version")

    def __init__(self, source: Source, part: Part, tensor: torch.Tensor):
        self._source, self._part = source, part
        self._size, self._stride = tensor.size(), tensor.stride()
        self._offset = int(tensor.storage_offset())
        self._version = Version(tensor)
        source.add(id(self))

    def unpack(self) -> torch.Tensor:
        self._version.check()
        return self._source.view(id(self), self._part, self._size, self._stride, self._offset)

    def __del__(self) -> None:
        source = getattr(self, "_source", None)
        if source is not None:
            source.drop(id(self))


class Kept:
    """What a node holds of a tensor that is kept as it is: without its history, which would hold
    the node.
    """

    __slots__ = ("_tensor", "_version")

    def __init__(self, tensor: torch.Tensor):
        self._tensor = tensor if tensor.is_leaf else tensor.detach()
        self._version = tensor._version

    def unpack(self) -> torch.Tensor:
        if self._tensor._version != self._version:
            found = Version(self._tensor)
            found._expected = self._version
            found.check()
        return self._tensor


Packed = Any  # Handle or Kept
