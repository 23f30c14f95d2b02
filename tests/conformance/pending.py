"""What collectives do not do yet. The tests of this folder and of tests/faults leave these cases
out until the engine runs every collective; CGX_TEST_PENDING=1 runs them all the same. An entry goes
when the code does what it says.
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


_MIDDLE = 256 << 10  # bytes that no socket takes at once
_ON_THE_ENGINE = ("all_reduce_sum", "barrier")


def kill_pending(call: str, layout: str, nbytes: int) -> bool:
    """Whether the ranks that are left wait until their timeout when one dies in this call: Gloo
    loses errors of transfers that are under way, and a receive from any rank sees no death.
    """
    if ALL or call in _ON_THE_ENGINE:
        return False
    return nbytes >= _MIDDLE or (call == "any_source" and layout != "hosts ab")


def leaving_pending(op: str, root: bool) -> bool:
    """Whether others fail if this rank's process ends when its part is done: a source that ends
    with its last byte may reset the connections over which Gloo passes the values on.
    """
    return not ALL and root and op in ("broadcast", "scatter")


def abort_pending(op: str, hosts: str) -> bool:
    """Whether abort() on another host leaves ranks waiting: receives do not look at the store."""
    return not ALL and op == "batch" and len(set(hosts)) > 1


def mismatch_pending(name: str, layout: str) -> bool:
    """Whether ranks that disagree get no MismatchError in a collective that Gloo runs: it ends the
    process that gets more than it expects, or leaves it waiting. On one host, without GLOO, calls
    are compared before they start, except for lengths that may differ from rank to rank.
    """
    call, _, what = name.partition(", ")
    uneven = call in ("all_to_all", "all_to_all_single", "reduce_scatter")
    lengths = what in ("one value more", "many more", "nothing", "other splits")
    return not ALL and (layout != "shm" or (uneven and lengths))


# Longer messages would be killed in their middle, which Gloo does not notice: 8 << 20 later.
LONGEST_IN_STRESS = (8 << 20) if ALL else (128 << 10)  # bytes of all parts of a call


def stress_pending(op: str, hosts: bool) -> bool:
    """Whether its waits outlast a death or an abort elsewhere (`kill_pending`, `abort_pending`)."""
    return not ALL and (op in ("any_source", "reduce_elsewhere") or (hosts and op in MESSAGES))


MESSAGES = ("batch", "tagged", "any_source")
