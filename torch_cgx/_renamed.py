"""Old names of arguments, attributes and keys: they work, with a DeprecationWarning."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from torch_cgx._warnings import warn_of_argument

_F = TypeVar("_F", bound=Callable[..., Any])


def warn_of_old(old: str, new: str) -> None:
    """As in "layer_min_size= of CGXState" and "min_size=". Raises it where filters say so."""
    warn_of_argument(f"{old} is deprecated; the new name is {new}", DeprecationWarning)


def takes_old_names(where: str, **olds: str) -> Callable[[_F], _F]:
    """Decorates a function, or an __init__, whose keyword arguments had other names:
    `new="old"`. where: its name, in messages. TypeError where both names are given.
    """

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def called(*args: Any, **given: Any) -> Any:
            for new, old in olds.items():
                if old in given:
                    if new in given:
                        raise TypeError(f"{where} got both {new}= and {old}=, its old name")
                    warn_of_old(f"{old}= of {where}", f"{new}=")
                    given[new] = given.pop(old)
            return function(*args, **given)

        return called  # type: ignore[return-value]

    return decorate


def old_attribute(where: str, old: str, new: str) -> property:
    """A property that stands for another attribute of the same object."""

    def get(self: Any) -> Any:
        warn_of_old(f"{where}.{old}", f"{where}.{new}")
        return getattr(self, new)

    def put(self: Any, value: Any) -> None:
        warn_of_old(f"{where}.{old}", f"{where}.{new}")
        setattr(self, new, value)

    return property(get, put, doc=f"The old name of `{new}`.")
