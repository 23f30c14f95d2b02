"""The list of `CGX_*` variables, and warnings of variables that are set but have no effect."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from torch_cgx import _C
from torch_cgx._warnings import warn

# Variables without an option (`_C.settings()` lists the others): read by the process or the build.
BUILD = ("CGX_CUDA_ARCHS", "CGX_MPI", "CGX_MPICC", "CGX_TESTING", "CGX_UNITS")
OTHERS = (*(row["variable"] for row in _C.process_variables()), *BUILD)
_OF_TESTS = "CGX_TEST_"

# Variables of IST-DASLab's torch_cgx that have no effect here -> what to do instead.
GONE = {
    "CGX_COMPRESSION_FAKE_RATIO": "there is no replacement: it made results wrong on purpose",
    "CGX_DEBUG_ALL_TO_ALL_REDUCTION": "set CGX_INNER_REDUCTION_TYPE=ONESHOT",
    "CGX_DEBUG_DUMMY_COMPRESSION": "set CGX_COMPRESSION_QUANTIZATION_BITS=32 for exact values",
    "CGX_REMOTE_BUF_COMPRESSION": "codecs always write straight into the memory that peers read",
}
_CLOSE = 0.75  # difflib's ratio; one wrong letter in a name of 20 is above 0.9

_checked = False


def warn_once_of_unknown(env: Mapping[str, str], rank: int) -> None:
    """Warns, once per process and on the first rank of each host only, of every `CGX_*` variable
    that torch_cgx does not read.

    env: the environment. rank: of this process, for launchers that do not set a local rank.
    """
    global _checked
    if _checked or _local_rank(env, rank) != 0:
        return
    _checked = True
    for text in complaints(env):
        warn(text)


def complaints(names: Iterable[str]) -> list[str]:
    """A line for each name that begins with CGX_ but is not a variable of torch_cgx."""
    known = [*_options(), *OTHERS]
    return [
        f"cgx: the environment variable {name} is set, but has no effect; {_advice(name)}"
        for name in sorted(names)
        if name.startswith("CGX_") and name not in known and not name.startswith(_OF_TESTS)
    ]


def _options() -> dict[str, str]:
    """Variable -> option."""
    return {row["variable"]: row["name"] for row in _C.settings()}


def _advice(name: str) -> str:
    if name in GONE:
        return f"it belonged to the old torch_cgx: {GONE[name]}"
    variables = [*_options(), *OTHERS]
    # CGX_COMPRESSION_BITS: words of one variable alone.
    words = set(name.upper().split("_"))
    near = [variable for variable in variables if words <= set(variable.split("_"))]
    if len(near) != 1:
        # CGX_BUCKETSIZE: people also guess an option's name with CGX_ in front.
        guesses = {f"CGX_{option.upper()}": variable for variable, option in _options().items()}
        guesses |= {variable: variable for variable in variables}
        close = difflib.get_close_matches(name.upper(), guesses, n=1, cutoff=_CLOSE)
        near = [guesses[one] for one in close]
    if near:
        return f"did you mean {near[0]}?"
    return "help(torch_cgx.Options) lists the variables of all options"


def _local_rank(env: Mapping[str, str], rank: int) -> int:
    from torch_cgx.launch import LaunchError, find

    text = env.get("LOCAL_RANK", "")
    if text.isdigit():
        return int(text)
    try:
        launcher = find(env)
    except LaunchError:  # init_process_group raises it if it needs the variables
        launcher = None
    if launcher is not None and launcher.local_rank is not None:
        return launcher.local_rank
    return rank
