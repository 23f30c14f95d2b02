"""States with error feedback, and what they owe."""

from __future__ import annotations

from cgx_utils import CGXState

MEMORIES = ["fp32", "bf16", "8bit"]


def feedback_state(memory="fp32", bits=2, **options):
    return CGXState(
        config={"bits": bits, "bucket_size": 64},
        error_feedback=True,
        error_feedback_memory=memory,
        **options,
    )


def owed(state):
    return state.state_dict()["error_feedback"]["residuals"]
