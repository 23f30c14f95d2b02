"""Functions of plain values whose results torch.compile takes for constants."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])


def constant(function: _F) -> _F:
    """Caches the results. torch.compiler.assume_constant_result, which tells torch.compile the
    same, would import all of its machinery.
    """
    cached = functools.lru_cache(256)(function)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return cached(*args)

    call._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]
