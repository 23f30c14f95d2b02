"""What torch_cgx and cgx_utils tell their users besides errors: warnings, and lines on stderr.

Nothing here raises because it cannot be shown: stderr may be missing (a daemon, `pythonw`), closed,
full, or a pipe that nobody reads, and programs put objects of their own in its place.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from typing import TypeGuard

_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OURS = tuple(os.path.join(_FOLDER, name, "") for name in ("torch_cgx", "cgx_utils"))


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """A warning at the innermost frame that belongs neither to torch_cgx or cgx_utils nor to
    torch, which calls them; at the outermost one where there is no other, as on threads of torch.

    Never raises. Where the program's filters turn it into an error (`-W error`), it is a line on
    stderr: it may come in a backward pass or in a collective, on one rank, while the others wait.
    """
    try:
        warnings.warn(text, category, stacklevel=_level())
    except Exception:  # of a filter, of `warnings.showwarning`, of a handler of logging
        say(f"warning: {text}")


def warn_of_argument(text: str, category: type[Warning] = UserWarning) -> None:
    """The same, but filters may turn it into an error: for an argument of a call that has not done
    anything yet, where all ranks get the same.
    """
    try:
        warnings.warn(text, category, stacklevel=_level())
    except Warning:
        raise
    except Exception:
        say(f"warning: {text}")


def show(text: str) -> None:
    """Prints a result that the caller asked for. Without a stdout, it does nothing."""
    if sys.stdout is not None:
        print(text)


def say(*lines: str) -> None:
    """Writes the lines on stderr, each with "cgx: " in front; they are lost where that fails."""
    # One write: ranks may share the file, and a thread of the engine may log at the same time.
    text = "".join(f"cgx: {line}\n" for line in lines)
    with contextlib.suppress(Exception):
        stream = sys.stderr
        if _is_file(stream):
            # Past the buffer: what cannot be written stays in it, and ends the process with status
            # 120 when Python writes it again at exit.
            stream.flush()
            os.write(stream.fileno(), text.encode(stream.encoding, "backslashreplace"))
        elif stream is not None:
            stream.write(text)
            stream.flush()


def _is_file(stream: object) -> TypeGuard[io.TextIOWrapper]:
    """Whether a text that is written arrives in a file as it is, without compression, say."""
    if type(stream) is not io.TextIOWrapper or type(stream.buffer) is not io.BufferedWriter:
        return False
    return type(stream.buffer.raw) is io.FileIO


def _level() -> int:
    """The stacklevel of a warning by the caller of the caller."""
    torch = sys.modules.get("torch")
    torchs = os.path.join(os.path.dirname(getattr(torch, "__file__", None) or ""), "")
    inside = (*_OURS, torchs) if torch is not None else _OURS
    level = 2
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inside):
        frame = frame.f_back
        level += 1
    return level
