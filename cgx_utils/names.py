"""The parameters' names, and the DistributedDataParallel instance that they come from."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from cgx_utils.owner import find_owner
from torch_cgx import _config

Pairs = list[tuple[str, torch.Tensor]]


class Names:
    """given: a module, its `named_parameters()`, or None: then the DDP instance gives the names,
    without the leading "module.".

    TypeError names what `given` holds otherwise.
    """

    def __init__(self, given: torch.nn.Module | Iterable[tuple[str, torch.Tensor]] | None = None):
        self.given = None if given is None else _pairs_of(given)
        self._owner: weakref.ref[DistributedDataParallel] | None = None

    @property
    def owner(self) -> DistributedDataParallel | None:
        """The DDP instance, if it was found and is still there."""
        return None if self._owner is None else self._owner()

    @property
    def lost_owner(self) -> bool:
        """Whether the DDP instance was found, and is gone."""
        return self._owner is not None and self._owner() is None

    def forget_owner(self) -> None:
        self._owner = None

    def find_owner(
        self, state: Any, parameters: list[torch.Tensor]
    ) -> DistributedDataParallel | None:
        """Searches for the DDP instance of `state`, or of these parameters. RuntimeError if it is
        another one than before, which is still there.
        """
        owner, previous = find_owner(state, parameters), self.owner
        if owner is not None and previous is not None and owner is not previous:
            raise RuntimeError(
                "this CGXState was used by another DistributedDataParallel instance before, "
                "which is still in use; make a CGXState for each"
            )
        if owner is not None:
            self._owner = weakref.ref(owner)
        return owner

    def known(self) -> Pairs:
        """(name, parameter) of the model; nothing as long as it is not known."""
        if self.given is not None:
            return self.given
        owner = self.owner
        return [] if owner is None else list(owner.module.named_parameters(remove_duplicate=False))

    def needed(self, purpose: str) -> Pairs:
        """The same. RuntimeError that names the purpose where the model is not known."""
        if self.given is None and self.owner is None:
            raise missing(purpose, "the DistributedDataParallel instance was not found")
        return self.known()


def missing(purpose: str, why: str) -> RuntimeError:
    """The error of names that are needed and not there."""
    return RuntimeError(
        f"CGXState needs the parameters' names for {purpose}, and {why}; "
        "pass named_parameters=model.named_parameters()"
    )


def _pairs_of(source: Any) -> Pairs:
    if isinstance(source, DistributedDataParallel):
        source = source.module
    if isinstance(source, torch.nn.Module):
        source = source.named_parameters(remove_duplicate=False)
    pairs = _config.list_of("named_parameters", source, "a module, (name, parameter) pairs, None")
    for pair in pairs:
        ok = isinstance(pair, tuple) and len(pair) == 2
        if not (ok and isinstance(pair[0], str) and isinstance(pair[1], torch.Tensor)):
            raise TypeError(
                f"named_parameters holds {type(pair).__name__}; allowed: a module, or "
                "(name, parameter) pairs as model.named_parameters() gives"
            )
    return pairs
