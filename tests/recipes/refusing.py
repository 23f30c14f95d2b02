"""For scripts that make mistakes on purpose."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any


def refused(kind: type[Exception], text: str, call: Callable[..., Any], *args: Any, **opts: Any):
    """AssertionError unless the call raises a `kind` with a message in which `text` is found."""
    try:
        call(*args, **opts)
    except kind as error:
        assert re.search(text, str(error)), f"{error!r}: {text!r}"
        return
    raise AssertionError(f"nothing was raised; expected {kind.__name__}: {text}")
