"""torch.distributed.checkpoint with a bound: planners that write and read payloads.

    import torch.distributed.checkpoint as dcp
    from torch_cgx.bounded.checkpoint import BoundedLoadPlanner, BoundedSavePlanner

    dcp.save(state, checkpoint_id=folder, planner=BoundedSavePlanner(max_error=1e-4))
    dcp.load(state, checkpoint_id=folder, planner=BoundedLoadPlanner())

Planners are the public interface for what checkpoints contain. The plan and the metadata are those
of torch's default planners; when plans are final, the save planner hands tensors to the storage as
bytes, one payload for each that a rank writes, and the load planner asks for these bytes. So any
storage that keeps bytes can hold them: FileSystemWriter and FileSystemReader, fsspec's, and others
of the public interface; HuggingFaceStorageWriter keeps tensors only.

Unlike the rest of torch_cgx.bounded, this module imports torch.distributed.
"""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    ReadItem,
    SavePlan,
    WriteItem,
    WriteItemType,
)

from torch_cgx._threads import safe_after_fork
from torch_cgx.bounded import _dtypes
from torch_cgx.bounded._decompress import decompress
from torch_cgx.bounded._named import Named, payload_of
from torch_cgx.bounded._payload import PayloadError, open_payload
from torch_cgx.bounded._rules import Overrides, Rules

__all__ = ["BoundedLoadPlanner", "BoundedSavePlanner"]

_MAGIC = b"CGXB"
# What HuggingFaceStorageWriter puts into plans; nothing else tells which storage it is.
_HUGGING_FACE = {"fqn_to_index_mapping", "shard_index"}


class BoundedSavePlanner(DefaultSavePlanner):
    """DefaultSavePlanner that writes tensors as payloads within a bound.

    max_error, relative, pointwise, overrides: as in `bounded.save`; the names are those of
    torch.distributed.checkpoint ("model.blocks.0.norm.weight"). Floating and complex tensors are
    bounded, whole numbers and bool lossless; what payloads do not hold (8-bit floats, sparse and
    quantized tensors, subclasses made of other tensors) and all that is not a tensor is written as
    by DefaultSavePlanner, as far as the storage takes it. A rank's shard of a DTensor is a tensor
    of its own: `relative` is of the range of the shard, which is at most that of the whole.
    options: of DefaultSavePlanner.

    ValueError, TypeError: a bad bound. An error while a tensor is compressed has its name and is
    raised by torch.distributed.checkpoint as a CheckpointException on all ranks.
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

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        plan = super().finish_plan(new_plan)
        if isinstance(plan.storage_data, dict) and plan.storage_data.keys() <= _HUGGING_FACE:
            raise ValueError(
                "HuggingFaceStorageWriter keeps tensors, not payloads: allowed are storages that "
                "keep bytes, such as FileSystemWriter"
            )
        # Tensors in every respect until now, so metadata, deduplication and checks are torch's.
        items = [
            dataclasses.replace(item, type=WriteItemType.BYTE_IO)
            if self._has_payload(item)
            else item
            for item in plan.items
        ]
        self.plan = dataclasses.replace(plan, items=items)
        return self.plan

    def _has_payload(self, item: WriteItem) -> bool:
        """By the object, as the plan does not say of which layout or subclass it is."""
        if item.tensor_data is None:
            return False
        try:
            _dtypes.check(self.lookup_object(item.index))
        except (TypeError, ValueError):
            return False
        return True

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        if write_item.type != WriteItemType.BYTE_IO or write_item.tensor_data is None:
            return super().resolve_data(write_item)
        as_tensor = dataclasses.replace(write_item, type=WriteItemType.TENSOR)
        tensor = super().resolve_data(as_tensor)
        assert isinstance(tensor, torch.Tensor)
        name = write_item.index.fqn
        payload = payload_of(Named(tensor, [name]), self._rules.rule(name))
        return io.BytesIO(payload.numpy().tobytes())


class BoundedLoadPlanner(DefaultLoadPlanner):
    """DefaultLoadPlanner that reads what BoundedSavePlanner or DefaultSavePlanner has written, also
    onto another number of ranks or another sharding. Of a payload of which a rank needs some rows,
    only their blocks are decoded.

    A payload that was cut or altered is a PayloadError, with its name, which
    torch.distributed.checkpoint raises in a CheckpointException on all ranks. What is not a tensor,
    and the metadata, is read by torch with pickle: load checkpoints that you trust, or use
    `bounded.load`.
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
        data = value.getbuffer()
        if data[: len(_MAGIC)] == _MAGIC:
            try:
                _decode(data, item, target)
            except PayloadError as error:
                raise PayloadError(f"{item.storage_index.fqn}: {error}") from None
        else:
            _copy(torch.load(value, map_location="cpu", weights_only=True), item, target)
        self.commit_tensor(item, target)


def _decode(data: memoryview, item: ReadItem, target: torch.Tensor) -> None:
    """Writes what the item asks for of a payload."""
    opened = open_payload(data)
    if len(item.lengths) == 0 or len(opened.shape) == 0:
        _copy(decompress(data), item, target)
        return
    start, count = item.storage_offsets[0], item.lengths[0]
    rows = slice(start, start + count)
    whole = start + count <= opened.shape[0] and (count, *opened.shape[1:]) == target.shape
    if whole and opened.dtype == target.dtype:
        decompress(data, target, rows=rows)
        if not target.is_inference():  # decoding goes past autograd, which is to notice
            torch.autograd.graph.increment_version(target)
        return
    rest = torch.Size([0, *item.storage_offsets[1:]])
    _copy(decompress(data, rows=rows), dataclasses.replace(item, storage_offsets=rest), target)


@safe_after_fork
def _copy(tensor: torch.Tensor, item: ReadItem, target: torch.Tensor) -> None:
    """Copies the part of a stored tensor that an item asks for. PayloadError: it has no such."""
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
