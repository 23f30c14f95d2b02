"""What collectives do not do yet: cases that the tests of this folder, and of tests/faults, leave out
until the engine runs every collective. CGX_TEST_PENDING=1 runs them all the same. An entry goes when
the code does what it says.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from tests.conformance.catalogue import Case
from tests.conformance.values import COMPLEX

ALL = os.environ.get("CGX_TEST_PENDING") == "1"

_NOT_REDUCED = (torch.int16, torch.uint16, torch.uint32, torch.uint64)
_AS_BYTES = (
    *_NOT_REDUCED, *COMPLEX, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
)  # fmt: skip
_SHORT_PARTS = ("all_gather_coalesced", "all_to_all_uneven", "all_to_all_splits")
_IN_RANK_ORDER = (torch.float32, torch.float16, torch.bfloat16)

# What is pending: on `ranks` ranks in a group.
CASES: dict[str, Callable[[Case, int], bool]] = {
    "all_gather of lists takes equal lengths only": lambda case, ranks: (
        case.op == "all_gather_uneven"
    ),
    "int16, uint16, uint32 and uint64 are not reduced": lambda case, ranks: (
        bool(case.reduction) and case.dtype in _NOT_REDUCED
    ),
    "a strided view of no value or one cannot be seen as bytes": lambda case, ranks: (
        case.layout == "strided"
        and case.dtype in _AS_BYTES
        and (case.n < 2 or case.op in _SHORT_PARTS)
    ),
    "SUM of bools holds bytes other than 0 and 1": lambda case, ranks: (
        case.reduction == "SUM" and case.dtype == torch.bool
    ),
    "AVG of complex values is one rounding off": lambda case, ranks: (
        case.reduction == "AVG" and case.dtype in COMPLEX
    ),
    "floats are added in Gloo's order": lambda case, ranks: (
        case.rough
        and ranks > 2
        and not (case.op.startswith("all_reduce") and case.dtype in _IN_RANK_ORDER)
    ),
    "reduce writes into tensors of ranks other than the root": lambda case, ranks: (
        case.op == "reduce_elsewhere"
    ),
}


def pending(case: Case, ranks: int) -> bool:
    return not ALL and any(left_out(case, ranks) for left_out in CASES.values())
