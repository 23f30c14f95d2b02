"""The model compiled as a whole with a memory budget of torch's, beside the plan by modules."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch_cgx.activations.budget.compiled import RANDOM, Compiled, remove_compiled, set_compiled
from torch_cgx.activations.budget.plan import VERSION, Plan, percent
from torch_cgx.activations.budget.recompute import is_set
from torch_cgx.activations.budget.survey import is_fixed
from torch_cgx.activations.budget.timing import Timer
from torch_cgx.activations.budget.trials import Trials
from torch_cgx.activations.report.report import Report

_NOISE = 1.02  # of measured times
# Of the share that should keep the budget, at tries after the first: what torch keeps has steps.
_LOWER = (0.98, 0.9, 0.6, 0.0)
_EXACT = 1e-5  # an error of the gradient that is rounding
_ROUNDING = 1e-3  # that may be rounding; other masks of dropout make a larger one
_DIGITS = 1e4


class CompileOption:
    """Measures it, as long as the gradient of the trials is the exact one: at first."""

    def __init__(self, trials: Trials, exact: Report, step: float, timer: Timer) -> None:
        self._trials, self._gradient = trials, trials.gradient
        self._exact, self._step, self._timer = exact.total, step, timer
        self._fixed = sum(one.nbytes for one in exact.storages if is_fixed(one))

    def plan(self, budget: int, limit: float | None) -> Plan | str:
        """Or why there is none. budget: bytes. limit: of the time of a step."""
        if is_set(self._trials.model):
            return "the model's forward is set on the object"
        if budget <= self._fixed:
            return f"the loss alone keeps {self._fixed} bytes"
        try:
            return self._plan(budget, limit)
        except Exception as error:  # compilers, and what they cannot compile, raise of any type
            return _said(error)

    def _plan(self, budget: int, limit: float | None) -> Plan | str:
        compiled, nbytes = self._within(budget)
        setting = f"activation_memory_budget={compiled.share:g}"
        if nbytes > budget:
            return f"{nbytes} bytes with {setting}, the least there is"
        remove = self._set(compiled)()
        try:
            error = self._gradient.error()
        finally:
            remove()
        if not math.isfinite(error):
            return f"the gradient is not finite with {setting}"
        if compiled.draws and error > _ROUNDING:
            return f"{RANDOM}, by {percent(error)}"
        took = self._timer.ratio(self._gradient.now, lambda: lambda: None, self._set(compiled))
        if limit is not None and took > limit * _NOISE:
            return f"{took:.2f} of the time of a step with {setting}"
        return self._made(compiled.share, budget, limit, nbytes, error, took)

    def _within(self, budget: int) -> tuple[Compiled, int]:
        """The first that is within the budget, or the last one tried, and its bytes."""
        whole = max(self._exact - self._fixed, 1)
        share = min(1.0, (budget - self._fixed) / whole)
        for lower in (*_LOWER, None):
            compiled = Compiled(self._trials.model, _rounded(share), warns=False)
            remove = self._set(compiled)()
            try:
                nbytes = self._trials.memory().total
            finally:
                remove()
            if nbytes <= budget or lower is None or not compiled.share:
                break
            wanted = share * (budget - self._fixed) / (nbytes - self._fixed)
            share = lower * max(min(wanted, share - (nbytes - budget) / whole), 0.0)
        return compiled, nbytes

    def _set(self, compiled: Compiled) -> Callable[[], Callable[[], None]]:
        model = self._trials.model

        def set_up() -> Callable[[], None]:
            set_compiled(model, compiled)
            return lambda: remove_compiled(model)

        return set_up

    def _made(
        self,
        share: float,
        budget: int,
        limit: float | None,
        nbytes: int,
        error: float,
        took: float,
    ) -> Plan:
        whole = self._exact - self._fixed
        row = {
            "modules": [""],
            "what": f"compiled, activation_memory_budget {share:g}",
            "exact": self._exact,
            "bytes": nbytes,
            "error": error,
        }
        return Plan(
            version=VERSION,
            budget=budget,
            bytes={
                "exact": self._exact,
                "predicted": int(self._fixed + share * whole),
                "measured": nbytes,
            },
            time={"exact": self._step, "limit": limit, "predicted": took, "measured": took},
            error={"predicted": 0.0, "measured": error},
            modules={},
            compile={"activation_memory_budget": share},
            rows=[row],
        )


def better_of(by_modules: Plan | str, compiled: Plan | str) -> Plan | str:
    """Plans, or why there is none. The other one is in the notes of the plan."""
    if isinstance(by_modules, str):
        if isinstance(compiled, str):
            return f"{by_modules}; torch.compile: {compiled}"
        return _with_note(compiled, f"without torch.compile: {by_modules}")
    if isinstance(compiled, str):
        return _with_note(by_modules, f"torch.compile: {compiled}")
    if _is_better(compiled, by_modules):
        return _with_note(compiled, f"without torch.compile: {_measured(by_modules)}")
    return _with_note(by_modules, f"torch.compile: {_measured(compiled)}")


def _is_better(compiled: Plan, other: Plan) -> bool:
    ours, theirs = compiled["error"]["measured"], other["error"]["measured"]
    if theirs > _EXACT:
        return bool(ours < theirs)
    return bool(ours <= _EXACT and compiled["time"]["measured"] < other["time"]["measured"])


def _measured(plan: Plan) -> str:
    share = plan["bytes"]["measured"] / max(plan["bytes"]["exact"], 1)
    return (
        f"{100 * share:.1f} % of the bytes, {plan['time']['measured']:.2f} of the time of a step, "
        f"error of the gradient {percent(plan['error']['measured'])}"
    )


def _with_note(plan: Plan, note: str) -> Plan:
    return Plan({**plan, "notes": [note]})


def _rounded(share: float) -> float:
    return math.floor(share * _DIGITS) / _DIGITS


def _said(error: BaseException) -> str:
    """Its type and first line; of what a backend raised, not of torch's wrapper around it."""
    while isinstance(inner := getattr(error, "inner_exception", None), BaseException):
        error = inner
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
