"""The state of `cgx_hook`: the rules and the plans of one DistributedDataParallel instance."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from cgx_utils import error_feedback as feedback
from cgx_utils.adaptive import AdaptiveBits
from cgx_utils.choosing import Chooser
from cgx_utils.decisions import Decisions
from cgx_utils.defaults import Defaults
from cgx_utils.names import Names
from cgx_utils.plans import MOST_LAYOUTS, Content, Plan, Plans, content_of
from cgx_utils.report import Report, rows_of, tuner_line
from cgx_utils.saved_state import SavedState
from cgx_utils.schedule import Schedule
from cgx_utils.settings import check_min_size, settings_of
from cgx_utils.summary import Decision, Summary, log
from torch_cgx import _config, _steps
from torch_cgx._policy.rules import Policy
from torch_cgx._renamed import old_attribute, takes_old_names
from torch_cgx._warnings import warn

if TYPE_CHECKING:
    from cgx_utils.monitor.observer import Observer
    from torch_cgx._C import ProcessGroupCGX


class CGXState:
    """The rules by which `cgx_hook` compresses gradients, for one DistributedDataParallel instance.

    A gradient is compressed if its parameter has more than one dimension and at least
    max(min_size, CGX_COMPRESSION_MINIMAL_SIZE) values; biases, norms and small layers are
    exact.

    group: the process group to reduce over (backend "cgx"); None: the DDP instance's.
    min_size: in values.
    settings: as keywords, CGXState(bits=4, codec="rotated"): "bits" (1-8; 16: bf16 or fp16, as
        "half" says; 32: exact; other numbers above 8 are exact too, with a warning), "bucket_size"
        (values) and, if needed, "codec", "rounding", "seed", "skip_incomplete_buckets",
        "exact_zeros". Keys that are left open come from the group's `torch_cgx.Options`, else from
        CGX_COMPRESSION_QUANTIZATION_BITS, CGX_COMPRESSION_BUCKET_SIZE, ... as they are when the
        state is created, else: bits 4, bucket_size 512.
    config: the same settings as a dict.
    layer_filter: a callable (name, parameter) -> bool, a regex or a list of regexes, searched for
        in the parameter's name. Only parameters that it selects are compressed. It replaces the
        rule about dimensions, not the rule about sizes. Any name of a tied parameter selects it.
        Names are without the wrappers "_orig_mod.", "_checkpoint_wrapped_module.",
        "_fsdp_wrapped_module." and "module.".
    overrides: {regex: config}, the first match counts. With "bits" it overrides the rules above,
        sizes included; without, it changes how a compressed layer is compressed.
    named_parameters: `model.named_parameters()` or the model, for the names; by default the names
        in the DDP instance, without the leading "module.".
    adaptive: chooses the bits of each compressed layer under a budget, from gradients measured on
        all ranks (`AdaptiveBits`). Layers whose bits an override sets are left alone. Until the
        first decision, after step 2, "bits" of `config` hold, or, without them, the largest
        candidate in the budget.
    schedule: bits by step, in place of the setting `bits`, for a warm-up: {0: 32, 500: 4} sends
        the first 500 steps exactly; or a function of the step. Equal on all ranks, as all settings:
        a rank that sends other bits is a torch_cgx.MismatchError. Overrides that set bits stay.
        Steps are the reductions of this state, counted from 0; checkpoints hold the number.
        ValueError in the first step for an entry that a layer's codec does not have. Not with
        `adaptive`.
    error_feedback: adds to each gradient the errors of the encodings of earlier steps
        (docs/numerics.md, Error feedback). Each parameter that is reduced as fp32, fp16 or bf16 has
        a residual, which is 0 for exact ones. maxmin at 1 bit is a ValueError in the first step.
    error_feedback_memory: how residuals are stored: "fp32", "bf16", or "8bit" (maxmin with 8 bits
        between the steps; not for CUDA tensors).
    aps: shifts the gradient of each compressed parameter by a power of two to the top of its
        format's range, and the mean back: the automatic shift (APS) of CPD (docs/numerics.md). All
        codecs are float, fp16 or bf16, else a ValueError in the first step. Not with `adaptive`. A
        bucket costs an all-reduce MAX of 4 bytes a layer, for which the backward pass waits.

    After the first step, rank 0 of the group writes a line on stderr that says what is compressed
    (unless the group's option `log` is off), or warns that nothing is compressed, with the reason;
    with `adaptive`, a line for each decision that changes bits.

    ValueError and TypeError name a bad key or value. Pickling drops the process group, plans and
    names. It keeps residuals by name, as state_dict() does, or drops them, with a warning, if the
    names are not known. A restored state uses the DDP instance that it is registered with. Not
    thread-safe (DDP runs one hook at a time). torch.distributed.checkpoint calls state_dict() and
    load_state_dict() (docs/checkpoints.md).
    """

    @takes_old_names(
        "CGXState",
        group="process_group",
        min_size="layer_min_size",
        config="compression_params",
    )
    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        min_size: int = 1024,
        config: Mapping[str, Any] | None = None,
        *,
        layer_filter: Any = None,
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        named_parameters: torch.nn.Module | Iterable[tuple[str, torch.Tensor]] | None = None,
        adaptive: AdaptiveBits | None = None,
        schedule: Mapping[int, int] | Callable[[int], int] | None = None,
        error_feedback: bool = False,
        error_feedback_memory: str = "fp32",
        aps: bool = False,
        **settings: Any,
    ):
        check_min_size(min_size)
        names = [name for name in inspect.signature(CGXState).parameters if name != "settings"]
        params = settings_of(config, settings, names)
        if adaptive is not None and not isinstance(adaptive, AdaptiveBits):
            raise TypeError(f"adaptive={adaptive!r}; allowed: an AdaptiveBits, None")
        if not isinstance(aps, bool):
            raise TypeError(f"aps={aps!r}; allowed: True, False")
        if aps and adaptive is not None:
            raise ValueError(
                "aps=True and adaptive, which chooses bits of codecs with scales of their own; "
                "allowed: one of them"
            )
        if group is not None:
            from torch_cgx._backend import check_group  # loads the engine

            check_group(group, "group")
        self.group = group
        least = max(min_size, _config.minimal_size())
        self._policy = Policy(least, params, layer_filter, overrides)
        self._defaults = Defaults()
        self._decisions = None if adaptive is None else Decisions(adaptive, params.get("bits"))
        self._steps = _steps.StepCounter("this CGXState")
        self._names = Names(named_parameters)
        self._feedback = feedback.make(error_feedback, error_feedback_memory)
        self._schedule = None if schedule is None else Schedule(schedule)
        if schedule is not None and (adaptive is not None or "bits" in params):
            other = "adaptive" if adaptive is not None else "bits"
            raise ValueError(f"schedule={self._schedule} and {other}; allowed: one of them")
        self._aps = aps
        self._chooser = Chooser(
            self._policy, self._defaults, self._decisions, error_feedback, self._schedule, aps
        )
        self._layouts: dict[Content, list[torch.Tensor]] = {}
        self._plans = Plans(self._policy, self._chooser)
        self._summary: Summary | None = None
        self._scheduled: int | None = None  # bits of the plans
        self._holders = 0
        self.observer: Observer | None = None  # set by a Monitor

    @property
    def min_size(self) -> int:
        """Smallest number of values that is compressed, CGX_COMPRESSION_MINIMAL_SIZE included."""
        return self._policy.min_size

    @property
    def config(self) -> dict[str, Any]:
        """A copy of the keys that were given."""
        return dict(self._policy.params)

    process_group = old_attribute("CGXState", "process_group", "group")
    layer_min_size = old_attribute("CGXState", "layer_min_size", "min_size")
    compression_params = old_attribute("CGXState", "compression_params", "config")

    @property
    def adaptive(self) -> AdaptiveBits | None:
        """As given."""
        return None if self._decisions is None else self._decisions.parameters

    @property
    def schedule(self) -> Mapping[int, int] | Callable[[int], int] | None:
        """As given."""
        return None if self._schedule is None else self._schedule.given

    @property
    def error_feedback(self) -> bool:
        """As given."""
        return self._feedback is not None

    @property
    def aps(self) -> bool:
        """As given."""
        return self._aps

    def __repr__(self) -> str:
        """Shows the defaults that hold without a group, as long as there is none."""
        from torch_cgx import _C

        start = {} if self._decisions is None else {"bits": self._decisions.start_bits}
        if self._schedule is not None:
            bits = self._schedule.known_bits(self._steps.step)
            start = {} if bits is None else {"bits": bits}
        shown = self._defaults.shown(self._policy.params, start)
        shown["min_size"] = self.min_size
        text = ", ".join(f"{key}={value!r}" for key, value in shown.items())
        rules = f"{text}{self._policy.describe_rules()}"
        if self._decisions is not None:
            rules += f", adaptive={self._decisions.parameters}"
        if self._schedule is not None:
            rules += f", schedule={self._schedule}"
        if self._feedback is not None:
            rules += f", error_feedback={self._feedback.memory}"
        if self._aps:
            rules += ", aps=True"
        found = "" if self._summary is None else f"{self._summary}; "
        return f"CGXState({rules}; {found}torch_cgx {_C.__version__}, {_C.cpu_level()})"

    def group_of(self, parameters: list[torch.Tensor]) -> dist.ProcessGroup:
        """The process group to reduce the bucket of these parameters over."""
        key = content_of(parameters)
        # Signs of a second DDP instance: a new layout, the end of the first instance or, if both
        # have the same parameters, another reference to this state. Searching for it is slow.
        gone = self._names.lost_owner
        if key not in self._layouts or gone or sys.getrefcount(self) > self._holders:
            if len(self._layouts) >= MOST_LAYOUTS or gone:
                self._layouts.clear()
                self._plans.forget()
                if self._decisions is not None:
                    self._decisions.forget(gone)
            if gone:
                self._steps.abandon()
                self._names.forget_owner()
            owner = self._names.find_owner(self, parameters)
            if gone and self._feedback is not None:
                self._feedback.keep_only(parameters if owner is None else owner.parameters())
            self._holders = max(self._holders, sys.getrefcount(self))
            # Kept alive, so that no other object gets one of these ids.
            self._layouts[key] = parameters
        return self._own_group() or dist.distributed_c10d._get_default_group()

    def _own_group(self) -> dist.ProcessGroup | None:
        """The group that was given, else the DDP instance's, if that was found."""
        owner = self._names.owner
        return owner.process_group if self.group is None and owner is not None else self.group

    def residual(
        self, parameters: list[torch.Tensor], buffer: torch.Tensor, group: dist.ProcessGroup
    ) -> torch.Tensor | None:
        """The residual of a bucket, after `group_of`; None without error feedback. ValueError where
        load_state_dict() got the residuals of another model.
        """
        if self._feedback is None:
            return None
        if self._feedback.waits_for_names:
            self._feedback.restore(self._names.needed("the restored residuals"), group)
        return self._feedback.take(content_of(parameters), parameters, buffer, group)

    def keep_residual(self, parameters: list[torch.Tensor], work: dist.Work) -> None:
        """Called with the work that writes the residual, before its future gets callbacks."""
        if self._feedback is None:
            return
        sequence = ((self._steps.number or 0) << 40) + self._steps.step & (1 << 64) - 1
        firsts = [self._plans.numbers.first_of(parameter, self._names) for parameter in parameters]
        self._feedback.keep_after(work, content_of(parameters), firsts, sequence)

    def keys(self, parameters: list[torch.Tensor], backend: ProcessGroupCGX) -> dict[str, Any]:
        """The keys of the random numbers of this step's reduction of a bucket, as arguments of the
        backend; after `plan` of the same bucket. They do not depend on the layout of buckets, which
        DDP changes after the first step.
        """
        self._steps.begin({id(parameter) for parameter in parameters})
        number = self._steps.tensor_number(backend)
        firsts = self._plans.known(parameters, backend).firsts
        return {"step": self._steps.step, "tensor_number": number, "firsts": firsts}

    def state_dict(self) -> dict[str, Any]:
        """The data with which this rank continues after a restart. Call it on all ranks, or between
        steps on any rank. It has "version": 1 and, as far as this state has them, the sections

        - "steps": {"step", "number"}, integers: the number of the next step, and the number of this
          state among the states of its process group. They key random numbers.
        - "schedule": its entries as text, or "a function". Loading compares it: a warning names
          other entries. A state keeps its own schedule, and goes on with the saved step.
        - "aps": True. Loading warns where the restored state and this one differ. A state keeps its
          own.
        - "adaptive": the decision by parameter name, plain Python objects, equal on all ranks. If a
          decision is being computed, this waits for it.
        - "error_feedback": {"residuals": {name: tensor}, "memory", "rank", "world_size",
          "sequence"}. Residuals are copies on the CPU, in the shapes of their parameters and the
          units of a rank's gradient, fp32 or (memory "bf16") bf16; zeros before the first step.
          They differ between ranks.
        - "ranks": {rank: both}, with the rank as text: the same objects, for
          torch.distributed.checkpoint.

        RuntimeError if the names of parameters with residuals are not known.
        """
        if self._names.owner is None:
            self._names.find_owner(self, [])
        if self._decisions is not None:
            self._settle(None)
        known = self._names.known()  # of parameters that are reduced over the group
        return self._saved().save(self._own_group() if known else None)

    def _saved(self) -> SavedState:
        return SavedState(
            self._names, self._steps, self._decisions, self._schedule, self._feedback, self._aps
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state_dict() of the same rank and model. Call it on all ranks, before
        the first step or between two. Residuals are restored by name when the first bucket is
        reduced, or here if this state has named_parameters. Names may have other wrappers, or be
        other names of tied parameters.

        TypeError and ValueError name what does not match: another version, a number of bits that is
        not a candidate, a decision without `adaptive`, names and sizes of another model. They are
        raised here if the parameters' names are known, else at the next step, before anything is
        sent. Each rank has residuals of its own: if `state` has only residuals of other ranks, they
        are dropped, with a warning that names the ranks. If N ranks have saved, rank r of M takes
        the residuals of ranks r, r + M, ..., times M / N, which keeps the sum; a warning names
        ranks whose residuals are missing. Another warning: `state` has residuals, and this object
        no error feedback. Missing residuals begin with zeros; a missing decision or number of steps
        changes nothing.
        """
        self._plans.clear()
        self._saved().load(state)

    def plan(self, parameters: list[torch.Tensor], backend: ProcessGroupCGX) -> Plan:
        """The layers of a bucket, in its order: (number of values, codec or None for exact). Cached
        by content; after `group_of` of the same bucket.

        backend: its options apply to keys that the state leaves open; the environment to keys that
        both leave open.
        """
        return self.layers(parameters, backend)[0]

    def layers(
        self, parameters: list[torch.Tensor], backend: ProcessGroupCGX
    ) -> tuple[Plan, list[int]]:
        """`plan`, and the number of each layer's first value among all values of the model."""
        if self._decisions is not None:
            self._settle(backend)
        if self._schedule is not None:
            step = self._steps.step_of({id(parameter) for parameter in parameters})
            self._follow(step, backend.rank())
        return self._plans.get(parameters, backend, self._names, self._decisions)

    def keep_exact(self, parameters: list[torch.Tensor], why: str) -> None:
        """Records that the hook reduced these parameters without a plan."""
        self._plans.keep_exact(parameters, why)

    def measure(
        self, parameters: list[torch.Tensor], buffer: torch.Tensor, backend: ProcessGroupCGX
    ) -> None:
        """Called before a planned bucket is reduced: measures it, if a decision is due."""
        if self._decisions is None or not self._decisions.measures:
            return
        gradients = buffer.split([parameter.numel() for parameter in parameters])
        for parameter, values in zip(parameters, gradients, strict=True):
            self._decisions.measure(parameter, values, backend.rank())

    def end_step(self, backend: ProcessGroupCGX, group: dist.ProcessGroup) -> None:
        """Called after the last bucket of a step; the first call reports what is compressed."""
        self._steps.end()
        if self._decisions is not None:
            self._decisions.end_step(group)
        if self._summary is not None:
            return
        tuned = backend.settings()["autotune"]
        decided, communicator = self._plans.decided.values(), backend.stats()["communicator"]
        self._summary = Summary(decided, communicator, ranks=backend.size(), tuned=tuned)
        if self._schedule is not None:
            log(f"step {self._steps.step - 1}: {self._summary}", backend)
        elif not self._summary.compresses and backend.rank() == 0:
            warn(f"cgx: {self._summary}")
        else:
            log(str(self._summary), backend)

    def choices(self) -> dict[str, Decision]:
        """The decisions by name, for parameters that took part in a step and have known names."""
        names, decided = self._names_by_id(), self._plans.decided
        return {names[key]: one for key, one in decided.items() if key in names}

    def names_of(self, parameters: list[torch.Tensor]) -> list[str]:
        """The names of a bucket's parameters; "parameter N" where they are not known."""
        names = self._names_by_id()
        return [names.get(id(p), f"parameter {i}") for i, p in enumerate(parameters)]

    def report(self) -> Report:
        """A table of the decisions of the last step on this rank; no communication. `.rows` is a
        list of dicts, empty before the first step; `print()` shows a table.

        Relative errors are 0 for exact parameters. For other parameters they are the last error
        that a `Monitor` or `adaptive` measured, else the error of one encoding of a sample of the
        parameter's `grad` (the averaged gradient); None if `grad` is None.
        """
        measured = {} if self._decisions is None else dict(self._decisions.errors)
        measured |= {} if self.observer is None else self.observer.errors
        gradients = {id(p): p.grad for bucket in self._layouts.values() for p in bucket}
        remark = ""
        if self._summary is not None and self._summary.tuned:
            remark = tuner_line(self._own_group())
        group = self._own_group()
        ranks = 1 if group is None else group.size()
        rows = rows_of(
            self._plans.decided,
            self._names_by_id(),
            measured,
            gradients,
            aps_ranks=ranks if self._aps else None,
        )
        return Report(rows, remark)

    def _names_by_id(self) -> dict[int, str]:
        return {id(parameter): name for name, parameter in self._names.known()}

    def _settle(self, backend: ProcessGroupCGX | None) -> None:
        """Applies a new decision. backend: None keeps the line about it for the next step."""
        assert self._decisions is not None
        if self._decisions.settle():
            self._plans.clear()
        if backend is not None and self._decisions.news:
            log(self._decisions.news, backend)
            self._decisions.news = ""

    def _follow(self, step: int, rank: int) -> None:
        """Applies the schedule's bits of a step."""
        assert self._schedule is not None
        bits = self._schedule.bits(step, rank)
        if bits != self._scheduled:
            if self._scheduled is not None:
                self._summary = None  # there is something new to report
            self._scheduled = bits
            self._plans.clear()
        self._chooser.step = step

    def __getstate__(self) -> dict[str, Any]:
        dropped = {"group", "_layouts", "_plans", "_names", "_summary", "observer"}
        state = {key: value for key, value in self.__dict__.items() if key not in dropped}
        if self._feedback is not None:
            try:
                state["_feedback"] = self._feedback.detached(self._saved().named_residuals())
            except RuntimeError as error:
                warn(f"CGXState: pickling drops the residuals: {error}")
                state["_feedback"] = feedback.ErrorFeedback(self._feedback.memory)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, group=None, _names=Names(), _layouts={}, _holders=0)
        self.__dict__.update(_summary=None, observer=None)
        self._plans = Plans(self._policy, self._chooser)
