"""torch.distributed.checkpoint with bounded errors: planners that write and read payloads.

    import torch.distributed.checkpoint as dcp
    from torch_cgx.bounded.checkpoint import BoundedLoadPlanner, BoundedSavePlanner

    dcp.save(state, checkpoint_id=folder, planner=BoundedSavePlanner(max_error=1e-4))
    dcp.load(state, checkpoint_id=folder, planner=BoundedLoadPlanner())

`to_torch_save` converts such a checkpoint to a file of torch.save.

Planners are torch's public interface for the contents of checkpoints. Plan and metadata are made by
torch's default planners. When the plans are final, the save planner passes each tensor that a rank
writes to the storage as bytes, a record with its payload (_record.py), and the load planner asks
for these bytes. So any storage that stores bytes works: FileSystemWriter and FileSystemReader,
fsspec's, and others of the public interface. HuggingFaceStorageWriter stores tensors only.

Unlike the rest of torch_cgx.bounded, this module imports torch.distributed.
"""

from __future__ import annotations

import dataclasses
import io
import os
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    _EmptyStateDictLoadPlanner,
)
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    ReadItem,
    SavePlan,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from torch_cgx._threads import safe_after_fork
from torch_cgx._warnings import warn
from torch_cgx.bounded import _coarse, _dtypes
from torch_cgx.bounded._decompress import decompress
from torch_cgx.bounded._named import Named, payload_of
from torch_cgx.bounded._payload import Payload, PayloadError
from torch_cgx.bounded._record import is_record, place_of, read_record, write_record
from torch_cgx.bounded._replace import Path, replacing
from torch_cgx.bounded._rules import Overrides, Rules

__all__ = ["BoundedLoadPlanner", "BoundedSavePlanner", "to_torch_save"]

# Keys in Metadata.planner_data, which has the path to each name in a nested state: the number of
# the checkpoint, and the names of tensors that are written as torch writes them.
_CHECKPOINT = "torch_cgx.bounded.checkpoint"
_OF_TORCH = "torch_cgx.bounded.of_torch."
# Keys that HuggingFaceStorageWriter puts into plans; a planner cannot see the storage itself.
_HUGGING_FACE = {"fqn_to_index_mapping", "shard_index"}


class BoundedSavePlanner(DefaultSavePlanner):
    """DefaultSavePlanner that writes tensors as payloads within a bound.

    max_error, relative, pointwise, overrides: as in `bounded.save`; the names are as in
    torch.distributed.checkpoint ("model.blocks.0.norm.weight"). Floating-point and complex tensors
    are bounded; integers and bool are lossless. DefaultSavePlanner writes tensors that a payload
    cannot hold (8-bit floats, sparse and quantized tensors, subclasses made of other tensors) and
    values that are not tensors, if the storage accepts them. A rank's shard of a DTensor counts as
    a tensor: `relative` applies to the range of the shard, which is at most the range of the whole
    tensor. options: of DefaultSavePlanner.

    ValueError, TypeError: a bound that is not allowed. An error while a tensor is compressed has
    the tensor's name; torch.distributed.checkpoint raises it as a CheckpointException on all ranks.
    A warning on each rank names its tensors whose bound makes nearly all values 0.
    """

    def __init__(
        self,
        *,
        max_error: float | None = None,
        relative: float | None = None,
        pointwise: float | None = None,
        overrides: Overrides | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._rules = Rules.of(max_error, relative, pointwise, overrides)
        self._checkpoint: str | None = None
        self._coarse = _coarse.Names()
        self._left: set[Any] = set()  # payloads to make; storages ask for them on several threads

    def create_local_plan(self) -> SavePlan:
        plan = super().create_local_plan()
        of_torch = {
            _OF_TORCH + item.index.fqn: (item.index.fqn,)
            for item in plan.items
            if item.tensor_data is not None and not self._has_payload(item)
        }
        if not of_torch:
            return plan
        # A new dict: torch's has the paths of the state alone.
        return dataclasses.replace(plan, planner_data={**(plan.planner_data or {}), **of_torch})

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        plans, metadata = super().create_global_plan(all_plans)
        number = {_CHECKPOINT: (os.urandom(16).hex(),)}
        of_torch = {
            key: path
            for plan in self.global_plan
            for key, path in (plan.planner_data or {}).items()
            if key.startswith(_OF_TORCH)
        }
        data = {**(metadata.planner_data or {}), **of_torch, **number}
        self.metadata = dataclasses.replace(metadata, planner_data=data)
        plans = [dataclasses.replace(plan, planner_data=number) for plan in plans]
        return plans, self.metadata

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        (self._checkpoint,) = (new_plan.planner_data or {}).get(_CHECKPOINT, (None,))
        plan = super().finish_plan(new_plan)
        if isinstance(plan.storage_data, dict) and plan.storage_data.keys() <= _HUGGING_FACE:
            raise ValueError(
                "HuggingFaceStorageWriter stores tensors, not payloads: allowed are storages that "
                "store bytes, such as FileSystemWriter"
            )
        # Until here the items are tensors, so torch makes metadata, deduplicates and checks.
        items = [
            dataclasses.replace(item, type=WriteItemType.BYTE_IO)
            if self._has_payload(item)
            else item
            for item in plan.items
        ]
        self._coarse = _coarse.Names()
        self._left = {item.index for item in items if self._is_payload(item)}
        self.plan = dataclasses.replace(plan, items=items)
        return self.plan

    @staticmethod
    def _is_payload(item: WriteItem) -> bool:
        return item.type == WriteItemType.BYTE_IO and item.tensor_data is not None

    def _has_payload(self, item: WriteItem) -> bool:
        """Whether a payload can hold the tensor. Its layout and subclass are not in the plan, so
        the object decides.
        """
        if item.tensor_data is None:
            return False
        try:
            _dtypes.check(self.lookup_object(item.index))
        except (TypeError, ValueError):
            return False
        return True

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        if not self._is_payload(write_item):
            return super().resolve_data(write_item)
        as_tensor = dataclasses.replace(write_item, type=WriteItemType.TENSOR)
        tensor = super().resolve_data(as_tensor)
        assert isinstance(tensor, torch.Tensor)
        name = write_item.index.fqn
        note = self._coarse.note(name)
        payload = payload_of(Named(tensor, [name]), self._rules.rule(name), note)
        place = place_of(self._checkpoint, name, write_item.index.offset)
        record = write_record(payload, tensor, place)
        self._left.discard(write_item.index)
        if not self._left:
            self._coarse.warn(warn)  # never raises: the other ranks may still write
        return record


class BoundedLoadPlanner(DefaultLoadPlanner):
    """DefaultLoadPlanner that reads checkpoints of BoundedSavePlanner or DefaultSavePlanner, also
    with another number of ranks or another sharding. If a rank needs only some rows of a payload,
    it decodes only their blocks.

    A payload that was cut or altered, or belongs to another tensor or checkpoint, is a PayloadError
    with the tensor's name, which torch.distributed.checkpoint raises in a CheckpointException on
    all ranks. Torch reads the metadata, and values that are not tensors, with pickle: load only
    checkpoints that you trust, or use `bounded.load`.
    """

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        plan = super().finish_plan(central_plan)
        items = [
            dataclasses.replace(item, type=LoadItemType.BYTE_IO)
            if item.type == LoadItemType.TENSOR
            else item
            for item in plan.items
        ]
        return dataclasses.replace(plan, items=items)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        assert self.metadata is not None
        kept = self.metadata.state_dict_metadata[read_item.storage_index.fqn]
        if not isinstance(kept, TensorStorageMetadata):
            super().load_bytes(read_item, value)
            return
        item = dataclasses.replace(read_item, type=LoadItemType.TENSOR)
        target = self.resolve_tensor(item).detach()
        data, name = value.getbuffer(), item.storage_index.fqn
        paths = self.metadata.planner_data
        paths = paths if isinstance(paths, dict) else {}  # another planner may write other data
        (checkpoint,) = paths.get(_CHECKPOINT, (None,))
        try:
            if is_record(data):
                place = place_of(checkpoint, name, item.storage_index.offset)
                _decode(read_record(data, place), item, target)
            elif checkpoint is None or _OF_TORCH + name in paths:
                _copy(torch.load(value, map_location="cpu", weights_only=True), item, target)
            else:
                raise PayloadError("the checkpoint has no payload for it, so it was altered")
        except PayloadError as error:
            raise PayloadError(f"{name}: {error}") from None
        self.commit_tensor(item, target)


class _Everything(BoundedLoadPlanner, _EmptyStateDictLoadPlanner):
    """Loads the whole checkpoint into an empty dict, as torch's converters do."""


def to_torch_save(checkpoint_id: str | os.PathLike[str], path: Path) -> None:
    """Converts a checkpoint of BoundedSavePlanner or DefaultSavePlanner in a folder to a file for
    torch.load, as torch.distributed.checkpoint.format_utils.dcp_to_torch_save does for checkpoints
    of DefaultSavePlanner alone. Call it in one process; it needs the memory of all tensors.

    PayloadError, in a CheckpointException: a payload was altered, or is of another checkpoint.
    OSError: from the file system. An error leaves an existing file at `path` unchanged.
    """
    state: dict[str, Any] = {}
    reader = FileSystemReader(checkpoint_id)
    _load_state_dict(state, storage_reader=reader, planner=_Everything(), no_dist=True)
    with replacing(path) as file:
        torch.save(state, file)


def needs_bounded_load_planner() -> None:
    """Raises a PayloadError that names the function to use. torch.load calls it if it is given a
    record of a tensor (_record.py).
    """
    raise PayloadError(
        "this is a payload of torch_cgx.bounded.checkpoint.BoundedSavePlanner: load the checkpoint "
        "with BoundedLoadPlanner, or convert it by torch_cgx.bounded.checkpoint.to_torch_save "
        "(instead of dcp_to_torch_save)"
    )


# Without this, torch.load does not call the function, and its error only names it.
torch.serialization.add_safe_globals([needs_bounded_load_planner])


def _decode(opened: Payload, item: ReadItem, target: torch.Tensor) -> None:
    """Decodes the rows that an item asks for, and writes the item's values to `target`."""
    data = opened.data
    if len(item.lengths) == 0 or len(opened.shape) == 0:
        _copy(decompress(data), item, target)
        return
    start, count = item.storage_offsets[0], item.lengths[0]
    rows = slice(start, start + count)
    whole = start + count <= opened.shape[0] and (count, *opened.shape[1:]) == target.shape
    if whole and opened.dtype == target.dtype:
        decompress(data, target, rows=rows)
        if not target.is_inference():  # decoding bypasses autograd, so tell it of the write
            torch.autograd.graph.increment_version(target)
        return
    rest = torch.Size([0, *item.storage_offsets[1:]])
    _copy(decompress(data, rows=rows), dataclasses.replace(item, storage_offsets=rest), target)


@safe_after_fork
def _copy(tensor: torch.Tensor, item: ReadItem, target: torch.Tensor) -> None:
    """Copies the values that an item asks for from a stored tensor. PayloadError: they are outside
    of the tensor.
    """
    places = list(zip(item.storage_offsets, item.lengths, strict=True))
    if len(places) != tensor.dim() or any(
        start + count > size for (start, count), size in zip(places, tensor.shape, strict=True)
    ):
        raise PayloadError(
            f"its shape is {list(tensor.shape)}, the checkpoint's metadata asks for "
            f"{list(item.lengths)} at {list(item.storage_offsets)}"
        )
    for dim, (start, count) in enumerate(places):
        tensor = tensor.narrow(dim, start, count)
    target.copy_(tensor)
