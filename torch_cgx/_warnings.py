"""Warnings that point at the line of the user's program, however deep inside they arise."""

from __future__ import annotations

import os
import sys
import warnings

_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OURS = tuple(os.path.join(_FOLDER, name, "") for name in ("torch_cgx", "cgx_utils"))


def warn(text: str) -> None:
    """A UserWarning at the innermost frame that belongs neither to torch_cgx or cgx_utils nor to
    torch, which calls them; at the outermost one where there is no other, as on threads of torch.
    """
    torch = sys.modules.get("torch")
    torchs = os.path.join(os.path.dirname(torch.__file__ or ""), "") if torch else ""
    inside = (*_OURS, torchs) if torchs else _OURS
    level = 2
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inside):
        frame = frame.f_back
        level += 1
    warnings.warn(text, UserWarning, stacklevel=level)
