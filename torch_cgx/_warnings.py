"""Warnings that point at the line of the user's program, however deep inside they arise."""

from __future__ import annotations

import os
import sys
import warnings

_OURS = tuple(
    os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), name, "")
    for name in ("torch_cgx", "cgx_utils")
)


def warn(text: str) -> None:
    """A UserWarning at the innermost frame that belongs to neither torch_cgx nor cgx_utils."""
    level = 2
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
        level += 1
    warnings.warn(text, UserWarning, stacklevel=level)
