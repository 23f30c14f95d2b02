"""The state_dict() of a `CGXState`: making it, and restoring a state from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from cgx_utils.decisions import Decisions
from cgx_utils.error_feedback import ErrorFeedback
from cgx_utils.names import Names
from cgx_utils.resharding import merged, sections_of, with_rank
from cgx_utils.saved import VERSION, check_residuals, check_saved
from cgx_utils.schedule import Schedule
from torch_cgx import _steps
from torch_cgx._warnings import warn


@dataclass(frozen=True)
class SavedState:
    """The objects of a `CGXState` that a state_dict() covers; None where the state has none."""

    names: Names
    steps: _steps.StepCounter
    decisions: Decisions | None
    schedule: Schedule | None
    feedback: ErrorFeedback | None
    aps: bool = False

    def save(self, group: dist.ProcessGroup | None) -> dict[str, Any]:
        """As `CGXState.state_dict()`. group: None if it is not known."""
        state: dict[str, Any] = {"version": VERSION}
        steps = self.steps.state_dict()
        if any(steps.values()) or self.names.known():
            state["steps"] = steps
        if self.decisions is not None:
            state["adaptive"] = self.decisions.state_dict()
        if self.schedule is not None:
            state["schedule"] = self.schedule.saved()
        if self.aps:
            state["aps"] = True
        if self.feedback is None:
            return with_rank(state, 0 if group is None else group.rank(), ["adaptive"])
        sections = self.feedback.saved(self.named_residuals(), group, steps["step"])
        kinds = ["adaptive", "error_feedback"]
        found = [
            with_rank({**state, "error_feedback": section}, int(rank), kinds)
            for rank, section in sections.items()
        ]
        return merged(found)

    def load(self, state: Mapping[str, Any]) -> None:
        """As `CGXState.load_state_dict()`. Plans that were made before do not hold any more."""
        check_saved(state)
        adaptive, section = state.get("adaptive"), state.get("error_feedback")
        found = sections_of(state)
        if found is None:
            sections = {} if section is None else {"": section}
        else:
            adaptive = next((o["adaptive"] for o in found.values() if "adaptive" in o), adaptive)
            kept = {rank: own.get("error_feedback") for rank, own in found.items()}
            sections = {rank: one for rank, one in kept.items() if one is not None}
        for one in sections.values():
            check_residuals(one)
        sections = {rank or str(one["rank"]): one for rank, one in sections.items()}
        self._load_decision(adaptive)
        if "steps" in state:
            self.steps.load_state_dict(state["steps"])
        if self.schedule is not None and "schedule" in state:
            self.schedule.compare(state["schedule"])
        if state.get("aps", False) != self.aps:
            warn(
                f"CGXState: the restored state has aps={not self.aps}, this one aps={self.aps}, "
                "which is used"
            )
        if self.feedback is None:
            if sections:
                most = max(len(one["residuals"]) for one in sections.values())
                warn(
                    "CGXState: load_state_dict drops the residuals of "
                    f"{most} parameters, since error_feedback=False"
                )
            return
        self.feedback.load(sections, found is None or len(found) == 1)
        if self.names.given is not None and sections:
            self.feedback.restore(self.names.named(), None)

    def _load_decision(self, saved: Any) -> None:
        if saved is None:
            return
        if self.decisions is None:
            raise ValueError(
                "the restored state has a section 'adaptive', but this CGXState has none; allowed: "
                "CGXState(adaptive=AdaptiveBits(...)), or a state without that section"
            )
        self.decisions.load_state_dict(saved, self.names)

    def named_residuals(self) -> list[tuple[str, torch.Tensor]]:
        """(name, parameter) of the model. RuntimeError if a parameter has a residual and the model
        is not known.
        """
        assert self.feedback is not None
        if self.feedback.has_places:
            self.names.needed("its residuals")
        return self.names.known()
