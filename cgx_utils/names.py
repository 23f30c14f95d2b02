"""The parameters' names, and the DistributedDataParallel instance that has them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from cgx_utils.owner import find_owner
from torch_cgx._policy.names import Named, Pairs, named_of, named_of_source, with_names_of


class Names:
    """given: a module, its `named_parameters()`, or None: then the DDP instance gives the names,
    without the leading "module.".

    TypeError names what `given` holds otherwise.
    """

    def __init__(self, given: torch.nn.Module | Iterable[tuple[str, torch.Tensor]] | None = None):
        self.given = None if given is None else named_of_source(given)
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

    def named(self) -> list[Named]:
        """Each parameter of the model once; nothing as long as the model is not known."""
        owner = self.owner
        if self.given is None:
            return [] if owner is None else named_of(owner.module)
        if owner is None:
            return self.given
        # `model.named_parameters()` leaves out further names of tied parameters.
        more = {id(one.parameter): one for one in named_of(owner.module)}
        return [with_names_of(one, more.get(id(one.parameter))) for one in self.given]

    def known(self) -> Pairs:
        """(name, parameter) of each parameter of the model; nothing as long as it is not known."""
        return [(one.name, one.parameter) for one in self.named()]

    def needed(self, purpose: str) -> list[Named]:
        """As named(). RuntimeError that names the purpose where the model is not known."""
        if self.given is None and self.owner is None:
            raise missing(purpose, "the DistributedDataParallel instance was not found")
        return self.named()


def missing(purpose: str, why: str) -> RuntimeError:
    """The error of names that are needed and not there."""
    return RuntimeError(
        f"CGXState needs the parameters' names for {purpose}, and {why}; "
        "pass named_parameters=model.named_parameters()"
    )
