"""Loads states from checkpoints of torch.distributed.checkpoint, saved by any number of ranks.

from cgx_utils import checkpoint

dcp.save({"model": model.state_dict(), "cgx": state}, checkpoint_id=FOLDER)
...
checkpoint.load(state, FOLDER, key="cgx")
"""

from __future__ import annotations

import os
from typing import Any, Protocol

import torch
import torch.distributed as dist

from cgx_utils.resharding import RANKS, inherited
from torch_cgx._renamed import takes_old_names


class State(Protocol):
    """A `CGXState`, a `DiLoCo`, or what `fsdp.compress` has returned."""

    def load_state_dict(self, state: Any, /) -> None: ...


@takes_old_names("cgx_utils.checkpoint.load", group="process_group")
def load(
    state: State,
    checkpoint_id: str | os.PathLike[str] | None = None,
    *,
    key: str,
    storage_reader: Any = None,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Loads `state` from what dcp.save() wrote of it under `key`. Collective, as dcp.load().

    dcp.load({key: state}) does the same where as many ranks load as have saved. With another
    number it does not know which ranks' residuals to read: fewer ranks drop some, with a warning,
    and more ranks get its error of a missing key. Here rank r of M takes over the residuals of
    the ranks r, r + M, ..., so that the ranks together owe what they did
    (`CGXState.load_state_dict`).

    checkpoint_id: the folder; storage_reader: for other storages. group: the process group that
    loads, process_group of dcp.load(). ValueError where the checkpoint has nothing under `key`.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader  # slow to import
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load as load_by_dcp

    reader = storage_reader
    if reader is None:
        if checkpoint_id is None:
            raise ValueError("neither checkpoint_id nor storage_reader is given; needed: one")
        reader = FileSystemReader(checkpoint_id)
    metadata = reader.read_metadata()
    paths: dict[str, tuple[Any, ...]] = metadata.planner_data or {}
    mine = {name: path for name, path in paths.items() if path[0] == key}
    if not mine:
        known = sorted({str(path[0]) for path in paths.values()})
        raise ValueError(f"the checkpoint has nothing under key={key!r}; it has {known}")
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    saved = [int(path[-1]) for path in mine.values() if _of_a_rank(path)]
    wanted = set(inherited(rank, ranks, max(saved, default=-1) + 1))
    template: dict[Any, Any] = {}
    for name, path in mine.items():
        if _of_a_rank(path) and int(path[-1]) not in wanted:
            continue
        kind = metadata.state_dict_metadata[name]
        value = None
        if isinstance(kind, TensorStorageMetadata):
            value = torch.empty(kind.size, dtype=kind.properties.dtype, device="cpu")
        _put(template, path, value)
    load_by_dcp(template, storage_reader=reader, process_group=group)
    found = template[key]
    if saved:  # also the ranks whose residuals others take over
        found[RANKS] = {**{str(number): () for number in saved}, **found.get(RANKS, {})}
    state.load_state_dict(found)


def _of_a_rank(path: tuple[Any, ...]) -> bool:
    """Whether a path leads to what one of the ranks has saved."""
    return len(path) == 3 and path[1] == RANKS


def _put(template: dict[Any, Any], path: tuple[Any, ...], value: Any) -> None:
    """Into nested dicts and lists. As in DCP, the keys of dicts are texts, places in lists
    integers.
    """
    into: Any = template
    for key, following in zip(path, (*path[1:], None), strict=True):
        made = value if following is None else {} if isinstance(following, str) else []
        if isinstance(into, list):
            into += [None] * (key + 1 - len(into))
            known = into[key]
        else:
            known = into.get(key)
        if known is None:
            into[key] = known = made
        into = known
