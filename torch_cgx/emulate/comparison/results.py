"""The file of a sweep: what it is of in its first line, then a finished training a line, as JSON.

Lines are appended in one write and synced: a machine that stops in the middle leaves a last line
without its end, which the next sweep removes, and repeats the training.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from torch_cgx.emulate.comparison.fingerprint import changed

TRAINED = "trained"  # the setting that `fingerprint` makes


class Results:
    """The finished trainings, in memory, and in a file if a path is given. settings: what they
    depend on, as JSON has it; a file of others is refused.

    ValueError: the file is of other settings, is not such a file, or another process writes it.
    OSError: it cannot be read or written.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]):
        self.path = path
        self.runs: list[dict[str, Any]] = []
        self._file: int | None = None
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            self._lock(path)
            lines = _lines(path, self._file)
            self.runs = lines[1:]
            if self.runs:
                _check(path, lines[0], settings)
            else:  # it holds settings at most
                os.ftruncate(self._file, 0)
                self._append({"settings": dict(settings)})
        except BaseException:
            self.close()
            raise

    def _lock(self, path: Path) -> None:
        assert self._file is not None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another process writes {path}; allowed: another folder") from None
        except OSError:  # of a file system without locks
            pass

    def find(self, recipe: str, seed: int) -> dict[str, Any] | None:
        """The training of a recipe and a seed, if it is finished."""
        for run in self.runs:
            if (run["recipe"], run["seed"]) == (recipe, seed):
                return run
        return None

    def add(self, run: dict[str, Any]) -> None:
        """Appends a finished training; on return it is on the disk."""
        self.runs.append(run)
        if self._file is not None:
            self._append(run)

    def _append(self, line: Mapping[str, Any]) -> None:
        assert self._file is not None
        data = (json.dumps(line, allow_nan=False) + "\n").encode()
        while data:
            data = data[os.write(self._file, data) :]
        os.fsync(self._file)

    def close(self) -> None:
        """Lets other processes write."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> Results:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _lines(path: Path, file: int) -> list[dict[str, Any]]:
    """The lines of a file, without one whose end is missing, which is removed."""
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.ftruncate(file, len(whole))
        os.fsync(file)
    found = []
    for number, line in enumerate(whole.splitlines(), 1):
        one = None
        with contextlib.suppress(ValueError):
            one = json.loads(line)
        needed = {"settings"} if number == 1 else {"recipe", "seed", "definition"}
        if not isinstance(one, dict) or not needed <= set(one):
            raise ValueError(f"{path}, line {number}: not of a comparison; allowed: another file")
        found.append(one)
    return found


def _check(path: Path, first: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    here = dict(settings)
    there = dict(first["settings"])
    trained, earlier = here.pop(TRAINED, None), there.pop(TRAINED, None)
    told = differences(there, here)
    if told:
        raise ValueError(
            f"{path} is of other settings: {'; '.join(told)}; allowed: the same, or another folder"
        )
    names = [] if trained is None else changed(earlier, trained)
    if names:
        raise ValueError(
            f"what is trained is another task than in {path}: its {', '.join(names)} "
            f"{'differs' if len(names) == 1 else 'differ'}{_of(earlier, trained, names)}; allowed: "
            "the same, or another folder"
        )


def _of(there: Any, here: Mapping[str, Any], names: list[str]) -> str:
    """What an optimizer's settings are, which can be told in words."""
    if "optimizer" not in names or not isinstance(there, Mapping) or "optimizer" not in there:
        return ""
    return f" ({'; '.join(differences(there['optimizer'], here['optimizer']))})"


def differences(there: Any, here: Any, name: str = "") -> list[str]:
    """Where two objects of JSON differ, as in "steps is 300 there and 100 here"."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        found = []
        for key in dict.fromkeys([*there, *here]):
            inner = f"{name}.{key}" if name else str(key)
            found += differences(there.get(key), here.get(key), inner)
        return found
    if json.dumps(there) == json.dumps(here):
        return []
    both = isinstance(there, list) and isinstance(here, list)
    if both and len(there) == len(here) and all(isinstance(one, dict) for one in there + here):
        pairs = enumerate(zip(there, here, strict=True))
        return [one for i, (a, b) in pairs for one in differences(a, b, f"{name}[{i}]")]
    return [f"{name} is {json.dumps(there)} there and {json.dumps(here)} here"]
