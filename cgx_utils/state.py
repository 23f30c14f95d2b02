"""The state of `cgx_hook`: the policy of one DistributedDataParallel instance, and its plans."""

from __future__ import annotations

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
from cgx_utils.names import Named, Names, missing
from cgx_utils.policy import Policy, check_min_size
from cgx_utils.report import Report, error_of_encoding
from cgx_utils.resharding import merged, sections_of, with_rank
from cgx_utils.saved import (
    VERSION,
    check_residuals,
    check_saved,
)
from cgx_utils.schedule import Schedule
from cgx_utils.summary import Choice, Summary
from cgx_utils.value_numbers import ValueNumbers
from torch_cgx import _config, _steps
from torch_cgx._renamed import old_attribute, takes_old_names
from torch_cgx._warnings import say, warn

if TYPE_CHECKING:
    from cgx_utils.monitor.observer import Observer
    from torch_cgx._C import Codec, ProcessGroupCGX

Plan = list[tuple[int, "Codec | None"]]

_PURPOSE = "its layer_filter, overrides or adaptive"
_MOST_LAYOUTS = 1024  # a model has tens of buckets, and rebuilds them once


class CGXState:
    """Rules by which `cgx_hook` compresses gradients. One per DistributedDataParallel instance.

    A gradient is compressed if its parameter has more than one dimension and at least
    max(min_size, CGX_COMPRESSION_MINIMAL_SIZE) values; biases, norms and small layers are
    exact.

    group: the process group to reduce over (backend "cgx"); None: that of the DDP instance.
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
        Names are those without wrappers: "_orig_mod.", "_checkpoint_wrapped_module.",
        "_fsdp_wrapped_module.", "module.".
    overrides: {regex: config}, the first match counts. With "bits" it overrides the rules above,
        sizes included; without, it changes how a compressed layer is compressed.
    named_parameters: `model.named_parameters()` or the model, for the names; by default the names
        in the DDP instance, without the leading "module.".
    adaptive: chooses the bits of each compressed layer under a budget, from gradients measured on
        all ranks (`AdaptiveBits`). Layers whose bits an override sets are left alone. "bits" of
        `config` then hold until the first decision only, after step 2; without it the
        largest candidate in the budget does.
    schedule: bits by step, in place of the setting `bits`, for a warm-up: {0: 32, 500: 4} sends
        the first 500 steps exactly; or a function of the step. Equal on all ranks, as all settings:
        a rank that sends other bits is a torch_cgx.MismatchError. Overrides that set bits stay.
        Steps are those that this state has reduced, counted from 0; checkpoints hold the number.
        Not with `adaptive`.
    error_feedback: adds to each gradient what the encodings of earlier steps left out of it
        (docs/numerics.md, Error feedback). One residual for each parameter that is reduced as fp32,
        fp16 or bf16; exact ones stay 0. maxmin at 1 bit is a ValueError of the first step.
    error_feedback_memory: what a value of it takes: "fp32", "bf16", or "8bit" (maxmin with 8 bits
        between the steps; not for CUDA tensors).

    After the first step, rank 0 of the group writes a line on stderr that says what is compressed
    (unless the group's option `log` is off), or warns that nothing is compressed, with the reason;
    with `adaptive`, a line for each decision that changes bits.

    ValueError and TypeError name a bad key or value. Pickling drops the process group, plans and
    names, and keeps residuals by name, as state_dict() does (with a warning it drops them where the
    names are not known); a restored state uses the DDP instance that it is registered with. Not
    thread-safe (DDP runs one hook at a time). state_dict() and load_state_dict() are what
    torch.distributed.checkpoint calls (docs/checkpoints.md).
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
        **settings: Any,
    ):
        check_min_size(min_size)
        params = _params(config, settings)
        if adaptive is not None and not isinstance(adaptive, AdaptiveBits):
            raise TypeError(f"adaptive={adaptive!r}; allowed: an AdaptiveBits, None")
        if group is not None:
            _check_group(group)
        self.group = group
        self._policy = Policy(
            max(min_size, _config.minimal_size()), params, layer_filter, overrides
        )
        self._defaults = Defaults()
        self._decisions = None if adaptive is None else Decisions(adaptive, params.get("bits"))
        self._steps = _steps.StepCounter("this CGXState")
        self._numbers = ValueNumbers()
        self._names = Names(named_parameters)
        self._feedback = feedback.make(error_feedback, error_feedback_memory)
        self._schedule = None if schedule is None else Schedule(schedule)
        if schedule is not None and (adaptive is not None or "bits" in params):
            other = "adaptive" if adaptive is not None else "bits"
            raise ValueError(f"schedule={self._schedule} and {other}; allowed: one of them")
        self._chooser = Chooser(
            self._policy, self._defaults, self._decisions, error_feedback, self._schedule
        )
        self._layouts: dict[Any, list[torch.Tensor]] = {}
        self._plans: dict[Any, Plan] = {}
        self._firsts_of_plans: dict[Any, list[int]] = {}  # of layers
        self._choices: dict[int, Choice] = {}  # of parameters, by id
        self._summary: Summary | None = None
        self._scheduled: int | None = None  # bits of the plans
        self._holders = 0
        self._checked_patterns = False
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
    def error_feedback(self) -> bool:
        """As given."""
        return self._feedback is not None

    def __repr__(self) -> str:
        """Shows the defaults that hold without a group, as long as there is none."""
        from torch_cgx import _C

        start = {} if self._decisions is None else {"bits": self._decisions.start_bits}
        if self._schedule is not None:
            start = {"bits": self._schedule.bits(self._steps.step)}
        values = self._defaults.values({**self._policy.params, **start}, None)
        codec = _config.codec_of({}, values)
        shown = {"bits": values["bits"]}
        if codec is not None:
            own = codec.parameters
            shown = {key: own[key] for key in ("bits", "bucket_size") if key in own}
            shown["codec"] = codec.codec
            given = {k: v for k, v in self._policy.params.items() if k in own or k == "half"}
            shown |= {key: value for key, value in given.items() if key not in shown}
        shown["min_size"] = self.min_size
        text = ", ".join(f"{key}={value!r}" for key, value in shown.items())
        rules = f"{text}{self._policy.describe_rules()}"
        if self._decisions is not None:
            rules += f", adaptive={self._decisions.parameters}"
        if self._schedule is not None:
            rules += f", schedule={self._schedule}"
        if self._feedback is not None:
            rules += f", error_feedback={self._feedback.memory}"
        found = "" if self._summary is None else f"{self._summary}; "
        return f"CGXState({rules}; {found}torch_cgx {_C.__version__}, {_C.cpu_level()})"

    def group_of(self, parameters: list[torch.Tensor]) -> dist.ProcessGroup:
        """The process group to reduce the bucket of these parameters over."""
        key = _content(parameters)
        # Signs of a second DDP instance: a new layout, the end of the first instance or, if both
        # have the same parameters, another reference to this state. Searching for it is slow.
        gone = self._names.lost_owner
        if key not in self._layouts or gone or sys.getrefcount(self) > self._holders:
            if len(self._layouts) >= _MOST_LAYOUTS or gone:
                self._layouts.clear()
                self._plans.clear()
                self._choices.clear()
                self._firsts_of_plans.clear()
                self._numbers.forget()
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
        if self.group is not None:
            return self.group
        owner = self._names.owner
        if owner is not None:
            return owner.process_group
        return dist.distributed_c10d._get_default_group()

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
        return self._feedback.take(_content(parameters), parameters, buffer, group)

    def keep_residual(self, parameters: list[torch.Tensor], work: dist.Work) -> None:
        """Called with the work that writes the residual, before its future gets callbacks."""
        if self._feedback is None:
            return
        sequence = ((self._steps.number or 0) << 40) + self._steps.step & (1 << 64) - 1
        firsts = [self._numbers.first_of(parameter, self._names) for parameter in parameters]
        self._feedback.keep_after(work, _content(parameters), firsts, sequence)

    def keys(self, parameters: list[torch.Tensor], backend: ProcessGroupCGX) -> dict[str, Any]:
        """What keys the random numbers of this step's reduction of a bucket, as arguments of the
        backend; after `plan` of the same bucket. They do not depend on the layout of buckets, which
        DDP changes after the first step after a start.
        """
        self._steps.begin({id(parameter) for parameter in parameters})
        number = self._steps.tensor_number(backend)
        firsts = self._firsts_of_plans[_content(parameters), backend.serial]
        return {"step": self._steps.step, "tensor_number": number, "firsts": firsts}

    def state_dict(self) -> dict[str, Any]:
        """What this rank needs to go on after a restart, to be called on all ranks, or between
        steps on any: {"version": 1} and, as far as this state has them, the sections

        - "steps": {"step", "number"}, integers: the number of the next step, and of this state
          among those of its process group. They key random numbers.
        - "schedule": {"bits": of the next step, "entries": {step: bits}, None for a function}.
        - "adaptive": the decision by parameter name, plain Python objects, equal on all ranks. A
          decision that is under way is waited for.
        - "error_feedback": {"residuals": {name: tensor}, "memory", "rank", "world_size",
          "sequence"}. Residuals are copies of the shapes of their parameters on the CPU, in units
          of a rank's gradient, fp32 or (memory "bf16") bf16; zeros before the first step. Each rank
          has its own.
        - "ranks": {rank: both}, with the rank as text: the same objects, for
          torch.distributed.checkpoint.

        RuntimeError where parameters with residuals have no known names.
        """
        if self._names.owner is None:
            self._names.find_owner(self, [])
        state: dict[str, Any] = {"version": VERSION}
        steps = self._steps.state_dict()
        if any(steps.values()) or self._names.known():
            state["steps"] = steps
        if self._decisions is not None:
            self._settle(None)
            state["adaptive"] = self._decisions.state_dict()
        if self._schedule is not None:
            state["schedule"] = self._schedule.state_dict(steps["step"])
        group = self._known_group()
        if self._feedback is None:
            return with_rank(state, 0 if group is None else group.rank(), ["adaptive"])
        model = self._names_of_residuals()
        sections = self._feedback.saved(model, group, steps["step"])
        kinds = ["adaptive", "error_feedback"]
        found = [
            with_rank({**state, "error_feedback": section}, int(rank), kinds)
            for rank, section in sections.items()
        ]
        return merged(found)

    def _known_group(self) -> dist.ProcessGroup | None:
        """The group of the DDP instance, if it is known whose parameters are reduced over it."""
        owner = self._names.owner
        if self.group is not None and self._names.known():
            return self.group
        return None if owner is None else owner.process_group

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state_dict() of the same rank and model, in place of what this state has;
        on all ranks alike, before the first step or between two. Residuals are taken by name when
        the first bucket is reduced, or here if this state has named_parameters. Names may have
        other wrappers, or be other names of tied parameters.

        TypeError and ValueError name what does not fit: another version, a number of bits that is
        not known here, a decision without `adaptive`, names and sizes of another model; at once
        where the parameters' names are known, else at the next step, before anything is sent.
        Residuals are those of a rank. Where `state` has those of other ranks only, a warning names
        the ranks, and they are dropped. Saved by N ranks, rank r of M takes over those of the ranks
        r, r + M, ..., times M / N, so that the ranks together owe what they did; a warning names
        the ones that `state` lacks. A warning, too, if `state` has residuals and this object no
        error feedback. Residuals that `state` lacks begin with zeros; a decision and a number of
        steps that it lacks stay as they are.
        """
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
            self._steps.load_state_dict(state["steps"])
        if self._schedule is not None and "schedule" in state:
            self._schedule.compare(state["schedule"])
        if self._feedback is None:
            if sections:
                most = max(len(one["residuals"]) for one in sections.values())
                warn(
                    "CGXState: load_state_dict drops the residuals of "
                    f"{most} parameters, since error_feedback=False"
                )
            return
        self._feedback.load(sections, found is None or len(found) == 1)
        if self._names.given is not None and sections:
            self._feedback.restore(self._names.named(), None)

    def _load_decision(self, saved: Any) -> None:
        if saved is None:
            return
        if self._decisions is None:
            raise ValueError(
                "the restored state has a section 'adaptive', but this CGXState has none; allowed: "
                "CGXState(adaptive=AdaptiveBits(...)), or a state without that section"
            )
        self._decisions.load_state_dict(saved, self._names)
        self._plans.clear()

    def plan(self, parameters: list[torch.Tensor], backend: ProcessGroupCGX) -> Plan:
        """The layers of a bucket, in its order: (number of values, codec or None for exact). Cached
        by content; after `group_of` of the same bucket.

        backend: its options apply to keys that the state leaves open; the environment to keys that
        both leave open.
        """
        if self._decisions is not None:
            self._settle(backend)
        if self._schedule is not None:
            self._follow(self._steps.step_of({id(parameter) for parameter in parameters}))
        key = (_content(parameters), backend.serial)
        if key not in self._plans:
            if len(self._plans) >= _MOST_LAYOUTS:  # groups come and go
                self._plans.clear()
            self._plans[key], self._firsts_of_plans[key] = self._build(parameters, backend)
        return self._plans[key]

    def layers(
        self, parameters: list[torch.Tensor], backend: ProcessGroupCGX
    ) -> tuple[Plan, list[int]]:
        """`plan`, and the number of each layer's first value among those of the model."""
        plan = self.plan(parameters, backend)
        return plan, self._firsts_of_plans[_content(parameters), backend.serial]

    def keep_exact(self, parameters: list[torch.Tensor], why: str) -> None:
        """Records that the hook reduced these parameters without a plan."""
        for parameter in parameters:
            if id(parameter) not in self._choices:
                numel, dtype = parameter.numel(), parameter.dtype
                self._choices[id(parameter)] = Choice(numel, dtype, None, why)

    def measure(
        self, parameters: list[torch.Tensor], buffer: torch.Tensor, backend: ProcessGroupCGX
    ) -> None:
        """Called before a planned bucket is reduced: measures it, if a decision is due."""
        if self._decisions is None or not self._decisions.measures:
            return
        pieces = buffer.split([parameter.numel() for parameter in parameters])
        for parameter, values in zip(parameters, pieces, strict=True):
            self._decisions.measure(parameter, values, backend.rank())

    def end_step(self, backend: ProcessGroupCGX, group: dist.ProcessGroup) -> None:
        """Called after the last bucket of a step; the first call reports what is compressed."""
        self._steps.end()
        if self._decisions is not None:
            self._decisions.end_step(group)
        if self._summary is not None:
            return
        tuned = backend.settings()["autotune"]
        self._summary = Summary(
            self._choices.values(),
            backend.stats()["communicator"],
            ranks=backend.size(),
            tuned=tuned,
        )
        if self._schedule is not None:
            _log(f"step {self._steps.step - 1}: {self._summary}", backend)
        elif not self._summary.compresses and backend.rank() == 0:
            warn(f"cgx: {self._summary}")
        else:
            _log(str(self._summary), backend)

    def choices(self) -> dict[str, Choice]:
        """By name of the parameter, of those that took part in a step and have a known name."""
        names = {id(p): n for n, p in self._names.known()}
        return {names[key]: one for key, one in self._choices.items() if key in names}

    def names_of(self, parameters: list[torch.Tensor]) -> list[str]:
        """The names of a bucket's parameters; "parameter N" where they are not known."""
        names = {id(p): n for n, p in self._names.known()}
        return [names.get(id(p), f"parameter {i}") for i, p in enumerate(parameters)]

    def report(self) -> Report:
        """What the last step did with each parameter, on this rank; no communication. `.rows` is a
        list of dicts, `print()` shows a table. Without rows before the first step.

        Relative errors are 0 for exact parameters; for others the last that a `Monitor` or
        `adaptive` measured, else of one encoding of a sample of the parameter's `grad`, which is
        the averaged gradient; None where the parameter has none.
        """
        names = {id(p): n for n, p in self._names.known()}
        measured = {} if self._decisions is None else dict(self._decisions.errors)
        measured |= {} if self.observer is None else self.observer.errors
        gradients = {id(p): p.grad for bucket in self._layouts.values() for p in bucket}
        rows: list[tuple[str | None, Choice, float | None]] = []
        for key, choice in self._choices.items():
            name, gradient = names.get(key), gradients.get(key)
            error = 0.0 if choice.codec is None else measured.get(name or "")
            if error is None and choice.codec is not None and gradient is not None:
                error = error_of_encoding(gradient, choice.codec)
            rows.append((name, choice, error))
        order = {name: number for number, name in enumerate(names.values())}
        rows.sort(key=lambda row: order.get(row[0] or "", len(order)))
        return Report(rows, self._tuned())

    def _tuned(self) -> str:
        """What the tuner of the group has sent so far; empty without one."""
        if self._summary is None or not self._summary.tuned:
            return ""
        import torch_cgx

        owner = self._names.owner
        found = torch_cgx.stats(self.group or (None if owner is None else owner.process_group))
        kinds = {"as asked": "tuned_asked", "with 16 bits": "tuned_half", "exact": "tuned_exact"}
        calls = ", ".join(f"{found[key]} {name}" for name, key in kinds.items())
        ratio = found["bytes_raw"] / max(1, found["bytes_sent"])
        return f"the tuner sent calls: {calls}; {ratio:.1f}x fewer bytes in all calls of the group"

    def _settle(self, backend: ProcessGroupCGX | None) -> None:
        """Takes a new decision over. backend: None keeps the line about it for the next step."""
        assert self._decisions is not None
        if self._decisions.settle():
            self._plans.clear()
        if backend is not None and self._decisions.news:
            _log(self._decisions.news, backend)
            self._decisions.news = ""

    def _follow(self, step: int) -> None:
        """Takes over the schedule's bits of a step."""
        assert self._schedule is not None
        if self._schedule.bits(step) != self._scheduled:
            if self._scheduled is not None:
                self._summary = None  # there is something new to report
            self._scheduled = self._schedule.bits(step)
            self._plans.clear()
        self._chooser.step = step

    def _build(
        self, parameters: list[torch.Tensor], backend: ProcessGroupCGX
    ) -> tuple[Plan, list[int]]:
        """A plan, and the number of each of its layers' first value."""
        if self._decisions is not None:
            self._decisions.fit(self._names)
        needs_names = self._policy.needs_names or self._decisions is not None
        names = self._all_names() if needs_names else None
        layers: Plan = []
        firsts: list[int] = []
        for parameter in parameters:
            name: Named | None = None
            if names is not None:
                if id(parameter) not in names:
                    shape = tuple(parameter.shape)
                    raise missing(_PURPOSE, f"a parameter of shape {shape} is not in them")
                name = names[id(parameter)]
            choice = self._chooser.choose(name, parameter, backend)
            self._choices[id(parameter)] = choice
            codec = choice.codec
            if codec is None and layers and layers[-1][1] is None:
                layers[-1] = (layers[-1][0] + parameter.numel(), None)
            else:
                layers.append((parameter.numel(), codec))
                firsts.append(self._numbers.first_of(parameter, self._names))
        return layers, firsts

    def _all_names(self) -> dict[int, Named]:
        """By id of the parameter. The ids stay valid: the model or the given list keeps the
        parameters.
        """
        named = self._names.needed(_PURPOSE)
        if not self._checked_patterns:
            self._checked_patterns = True
            self._policy.warn_of_unused(named)
        return {id(one.parameter): one for one in named}

    def _names_of_residuals(self) -> list[tuple[str, torch.Tensor]]:
        """(name, parameter) of the model. RuntimeError where a parameter has a residual and the
        model is not known.
        """
        assert self._feedback is not None
        if self._feedback.has_places:
            self._names.needed("its residuals")
        return self._names.known()

    def __getstate__(self) -> dict[str, Any]:
        dropped = {"group", "_layouts", "_plans", "_names", "_numbers", "_firsts_of_plans"}
        dropped |= {"_choices", "_summary", "observer"}
        state = {key: value for key, value in self.__dict__.items() if key not in dropped}
        if self._feedback is not None:
            try:
                state["_feedback"] = self._feedback.detached(self._names_of_residuals())
            except RuntimeError as error:
                warn(f"CGXState: pickling drops the residuals: {error}")
                state["_feedback"] = feedback.ErrorFeedback(self._feedback.memory)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, group=None, _names=Names(), _numbers=ValueNumbers())
        self._firsts_of_plans = {}
        self.__dict__.update(_layouts={}, _plans={}, _holders=0, _checked_patterns=False)
        self.__dict__.update(_choices={}, _summary=None, observer=None)


def _log(line: str, backend: ProcessGroupCGX) -> None:
    """On rank 0, unless the group's option `log` is off."""
    if backend.rank() == 0 and backend.settings()["log"] != "off":
        say(line)


def _check_group(group: Any) -> None:
    from torch_cgx._backend import check_group  # loads the engine

    check_group(group, "group")


def _params(config: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of both, checked."""
    keys = ", ".join(_config.KEYS)
    if config is not None and not isinstance(config, Mapping):
        raise TypeError(f"config={config!r}; allowed: a dict of {keys}, None")
    given = dict(config or {})
    for key in settings:
        if key not in _config.KEYS:
            raise TypeError(f"CGXState got an unexpected argument {key!r}; settings are: {keys}")
        if key in given:
            raise TypeError(f"CGXState got {key}= and a config that has {key!r}; allowed: one")
    return _config.check_dict(given | dict(settings), "config")


def _content(parameters: list[torch.Tensor]) -> tuple[tuple[int, int], ...]:
    return tuple((id(parameter), parameter.numel()) for parameter in parameters)
