"""`fit`: a plan of what each module keeps, within a budget of bytes and of time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torch_cgx._gradient import Gradient, Loss, arguments_of
from torch_cgx._unchanged import Unchanged
from torch_cgx._warnings import show
from torch_cgx.activations.budget.applying import Changes, check_model
from torch_cgx.activations.budget.arguments import bytes_or_part, check_compile, check_time
from torch_cgx.activations.budget.block_options import BlockOptions
from torch_cgx.activations.budget.compile_option import CompileOption, better_of
from torch_cgx.activations.budget.item_options import ItemOptions
from torch_cgx.activations.budget.measures import exact_measures
from torch_cgx.activations.budget.options import Costs, Rows
from torch_cgx.activations.budget.plan import VERSION, Plan, Settings
from torch_cgx.activations.budget.rows import rows_of_table
from torch_cgx.activations.budget.solve import Choice, Frontier
from torch_cgx.activations.budget.survey import (
    blocks_of,
    bytes_by_item,
    items_of,
    watched,
)
from torch_cgx.activations.budget.tighten import Tried, tightened
from torch_cgx.activations.budget.timing import Timer
from torch_cgx.activations.budget.trials import Trials, merged
from torch_cgx.activations.report.memory import tensors_of

_ROUNDS = 6  # of a budget that is moved by what the bytes were predicted wrong
_SLACK = 0.002  # of the exact bytes: as near to the budget as is tried


def fit(
    model: nn.Module,
    batch: Any,
    budget: str | int = "40%",
    *,
    time: float | None = 1.1,
    loss: Loss | None = None,
    compile: bool = False,
    verbose: bool = True,
    _timer: Timer | None = None,
) -> Plan:
    """Chooses what each module keeps for backward, so that the error of the gradient is least
    within a budget of bytes and of time. The model is as before afterwards.

    Measured on the batch, for what modules keep together: its bytes, its time, and the error that
    it makes in the gradient if only it is changed, with each of: 8 to 1 bits of `compress_saved`
    (codecs maxmin and rotated), few-bit activation functions, a part of the rows of linear layers,
    and computing a block of a ModuleList or Sequential again (torch.utils.checkpoint), as a whole,
    with its input encoded, or without matrix products and attention. Norms, dropout and gates that
    keep less are taken before, where they save bytes: gradients stay exact. Squared errors are
    taken to add up; the solver is the one of `AdaptiveBits`. The plan is then measured as a whole.
    It takes some tens of forward and backward passes, and some for each block. As the sensitivity
    of GACT (Liu et al., ICML 2022), with recomputation among the choices.

    model: in the mode and on the device in which it is trained.
    batch: a tensor, a tuple of the model's arguments, or a dict of its named ones.
    budget: of what the model keeps now, as `activations.memory` counts it: "40%", or bytes.
    time: the longest step, relative to one of now, from 1. None: no limit. Measured times have some
        noise: the plan says what it took.
    loss: a function of the model's output that returns a tensor of one value. None: the output's
        `loss`, or a weighted sum of its tensors.
    compile: also measures the model compiled as a whole by torch.compile with torch's own memory
        budget (`torch._functorch.config.activation_memory_budget`), and takes it where its
        gradient errs less within bytes and time, or it is faster where both are exact. Compiling
        takes minutes, and a compiler; where it fails, the plan's notes say why.
    verbose: prints the plan.

    Returns a `Plan`, for `activations.apply(model, plan)`. It may be kept as JSON and edited.

    TypeError: arguments of other types. ValueError: a budget that nothing meets (the text has the
    smallest possible bytes); a time below 1; a model that has a plan or is compiled; a loss that is
    not one value, or has no gradient.
    """
    plan = Fitting(model, batch, loss, _timer).plan(budget, time, compile)
    if verbose:
        show(str(plan))
    return plan


class _Unmet(Exception):
    """least: bytes within the time; None: nothing is. without: within any time."""

    def __init__(self, least: int | None, without: int) -> None:
        super().__init__()
        self.least, self.without = least, without


class Fitting:
    """What `fit` measures, for plans with several budgets: only the first takes long."""

    def __init__(
        self, model: nn.Module, batch: Any, loss: Loss | None = None, timer: Timer | None = None
    ) -> None:
        """As of `fit`."""
        check_model(model)
        given = arguments_of(batch)
        self._trials = Trials(model, given, loss)
        self._timer = timer or Timer()
        self._tensors = tensors_of(given)
        self._begun = False
        self._measured: dict[str, tuple[Frontier, float, Gradient]] = {}

    def plan(
        self, budget: str | int = "40%", time: float | None = 1.1, compile: bool = False
    ) -> Plan:
        """As `fit`."""
        wanted = bytes_or_part(budget)
        check_time(time)
        check_compile(compile)
        self._given, self._limit = budget, time
        with Unchanged(self._trials.model, self._tensors), torch.enable_grad():
            if not self._begun:
                self._begin()
            whole = self._exact.total
            self._budget = wanted if isinstance(wanted, int) else int(wanted * whole)
            found = self._plan()
            if compile:
                found = better_of(found, self._whole.plan(self._budget, time))
        if isinstance(found, str):
            raise ValueError(found)
        return found

    def _begin(self) -> None:
        trials = self._trials
        self._exact = trials.memory()
        trials.start()
        self._run: Callable[[], Any] = trials.gradient.now
        self._step = self._timer.step(self._run)
        self._whole = CompileOption(trials, self._exact, self._step, self._timer)
        self._measures: Settings | None = None
        self._begun = True

    def _plan(self) -> Plan | str:
        """By modules; or why there is none."""
        trials = self._trials
        if self._exact.total <= self._budget:
            return self._made({}, None, self._exact.total, 1.0)
        if self._measures is None:
            self._measures = exact_measures(trials.model, trials.memory, self._exact)
        unmet = []
        bases = [self._measures]
        if self._measures and self._limit is not None:
            bases.append({})
        for base in bases:
            try:
                return self._with(base)
            except _Unmet as one:
                unmet.append(one)
                if one.without > self._budget:
                    break  # it is not the time that forbids
        return self._refusal(unmet)

    def _refusal(self, unmet: list[_Unmet]) -> str:
        within = [one.least for one in unmet if one.least is not None]
        without = min(one.without for one in unmet)
        text = f"budget={self._given!r} is {self._budget} bytes"
        if self._limit is None:
            return f"{text}, which nothing meets; allowed: at least {self._text(without)}"
        text = f"{text}, which nothing meets with time={self._limit:g}"
        least = f"at least {self._text(min(within))}" if within else "none with this time"
        if within and min(within) <= without:
            return f"{text}; allowed: {least}"
        return f"{text}; allowed: {least}; with time=None at least {self._text(without)}"

    def _text(self, nbytes: int) -> str:
        share = math.ceil(1000 * nbytes / self._exact.total) / 10
        return f"{nbytes} bytes ({share:g}% of {self._exact.total})"

    # ---- with the measures that leave the gradient exact

    def _with(self, base: Settings) -> Plan:
        frontier, ratio, self._trials.gradient = self._frontier(base)
        limit = None if self._limit is None else self._limit - ratio
        tried = self._tried(frontier, base, limit)
        if self._limit is not None and limit is not None:

            def again(allowed: float) -> Tried | None:
                try:
                    return self._tried(frontier, base, allowed)
                except _Unmet:
                    return None

            tried = tightened(tried, self._limit, limit, again)
        return self._made(base, tried.choice, tried.nbytes, tried.took, ratio)

    def _tried(self, frontier: Frontier, base: Settings, limit: float | None) -> Tried:
        choice, nbytes = self._search(frontier, base, limit)
        return Tried(choice, nbytes, self._took(base, choice))

    def _frontier(self, base: Settings) -> tuple[Frontier, float, Gradient]:
        """And the time of a step with the measures, relative to the exact one, and its gradient."""
        key = repr(base)
        if key not in self._measured:
            ratio = 1.0
            if base:
                ratio = self._timer.ratio(self._run, self._set({}), self._set(base))
            with_base = Changes(self._trials.model, base)
            try:
                self._trials.start()
                found = Frontier(self._rows())
            finally:
                with_base.remove()
            self._measured[key] = found, ratio, self._trials.gradient
        return self._measured[key]

    def _rows(self) -> Rows:
        trials = self._trials
        report = trials.memory()
        calls = watched(trials.model, trials.gradient.now)
        blocks = blocks_of(trials.model, calls)
        items = items_of(report.storages, trials.model, blocks)
        costs = Costs(self._timer, self._step)
        costs.calibrate(items, lambda settings: self._timer.longer(self._run, self._set(settings)))
        options = ItemOptions(trials, items, calls, costs).options(report)
        _, fixed = bytes_by_item(report.storages, items)
        inner = [[n for n, item in enumerate(items) if item.block == one] for one in blocks]
        if not blocks:
            return Rows(options, [], [], [], fixed)
        again = BlockOptions(trials, items, blocks, costs)
        return Rows(options, again.options(), inner, again.crossing, fixed)

    def _search(
        self, frontier: Frontier, base: Settings, limit: float | None
    ) -> tuple[Choice, int]:
        """The choice with the least error that is measured to be within the budget. What is
        predicted differs by what options share or do not: the budget moves by as much."""
        best: tuple[Choice, int] | None = None
        wanted, tried = float(self._budget), set()
        for _ in range(_ROUNDS):
            choice = frontier.best(wanted, limit)
            if choice is None or choice.options in tried:
                break
            tried.add(choice.options)
            nbytes = self._kept(base, choice)
            left = self._budget - nbytes
            if left >= 0 and (best is None or choice.error < best[0].error):
                best = choice, nbytes
            if 0 <= left < _SLACK * self._exact.total:
                break
            wanted += left
        if best is not None:
            return best
        least, without = frontier.least(limit), frontier.least(None)
        assert without is not None
        kept = None if least is None else self._kept(base, least)
        if least is not None and kept is not None and kept <= self._budget:
            return least, kept
        raise _Unmet(kept, self._kept(base, without))

    # ---- the plan as a whole

    def _settings(self, base: Settings, choice: Choice | None) -> Settings:
        options = () if choice is None else choice.options
        return merged(base, *(one.settings for one in options))

    def _kept(self, base: Settings, choice: Choice) -> int:
        return self._trials.kept(self._settings(base, choice))[0].total

    def _took(self, base: Settings, choice: Choice) -> float:
        settings = self._settings(base, choice)
        return self._timer.ratio(self._run, self._set({}), self._set(settings))

    def _set(self, settings: Settings) -> Callable[[], Callable[[], None]]:
        return lambda: Changes(self._trials.model, settings).remove

    def _made(
        self,
        base: Settings,
        choice: Choice | None,
        nbytes: int,
        took: float,
        ratio: float = 1.0,
    ) -> Plan:
        settings = self._settings(base, choice)
        error = self._trials.error(settings) ** 0.5 if settings else 0.0
        predicted = Choice((), self._exact.total, 0.0, 0.0) if choice is None else choice
        return Plan(
            version=VERSION,
            budget=self._budget,
            bytes={
                "exact": self._exact.total,
                "predicted": int(predicted.nbytes),
                "measured": nbytes,
            },
            time={
                "exact": self._step,
                "limit": self._limit,
                "predicted": ratio + predicted.time,
                "measured": took,
            },
            error={"predicted": predicted.error**0.5, "measured": error},
            modules=settings,
            compile=None,
            rows=rows_of_table(self._exact, base, predicted),
        )
