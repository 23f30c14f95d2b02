"""`apply`: formats in a model and its training, until they are removed."""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torch_cgx._warnings import warn
from torch_cgx.emulate.gemm.lowering import check as check_geometry
from torch_cgx.emulate.gemm.rounding import Clock
from torch_cgx.emulate.training import modules
from torch_cgx.emulate.training.memory import Hook, Place
from torch_cgx.emulate.training.notes import Notes
from torch_cgx.emulate.training.optimizers import OptimizerHooks, check_state
from torch_cgx.emulate.training.plan import Plan, make_plan, named
from torch_cgx.emulate.training.settings import Settings, settings
from torch_cgx.emulate.training.site import Site

if TYPE_CHECKING:
    from torch_cgx.emulate.training.ledger import Ledger

_emulated: weakref.WeakSet[nn.Module] = weakref.WeakSet()


class Emulation:
    """What `apply` has set up.

    recipe: the entries in force, as a dict. layers: {name: formats} of the GEMMs that round. exact:
    names of GEMM layers that the settings leave exact. left: (name, class) of modules whose GEMMs
    cannot be emulated, as those of LSTMs. records: of the last measured step, by "LAYER/TENSOR",
    the shares "underflowed" and "saturated", "sqnr" in decibels, "amax" and "bits" per value.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        settings: Settings,
        plan: Plan,
    ):
        self.recipe = dict(settings.recipe)
        self.exact, self.left = plan.exact, plan.left
        self._model = weakref.ref(model)
        self._clock, self._notes = Clock(settings.seed), Notes()
        self._sites: list[tuple[Site, nn.Module, str]] = []
        self._outputs: list[tuple[nn.Module, str]] = []
        self._hooks: list[tuple[Hook, Any]] = []
        self._encoders: list[tuple[nn.TransformerEncoder, bool]] = []
        self._optimizer: OptimizerHooks | None = None
        self._active = True
        _forget_compiled()
        self._exchange(plan)
        for index, one in plan.outputs:
            formats = (one.activations, one.gradient_maps)
            self._hook(one.module, Place(one.name, *formats, self._clock, index, self._notes))
            self._outputs.append((one.module, "" if one.module is model else one.name))
        if plan.gemms or plan.outputs:
            self._keep_slow_paths(model)
        if plan.optimizer:
            self._optimizer = OptimizerHooks(model, optimizer, settings, self._notes)
        self._marked = list(model.modules())
        _emulated.update(self._marked)

    def _exchange(self, plan: Plan) -> None:
        found: dict[int, tuple[nn.Module, list[Site | None]]] = {}
        for index, target, formats in plan.gemms:
            site = Site(formats, self._clock, index, target.name, self._notes)
            name = target.name
            if target.kind == "attention":
                name, _, part = name.rpartition(".")
                pair = found.setdefault(id(target.module), (target.module, [None, None]))[1]
                pair[part == "out_proj"] = site
            else:
                found[id(target.module)] = (target.module, [site])
            self._sites.append((site, target.module, name))
        for module, sites in found.values():
            modules.exchange(module, sites)

    def _hook(self, module: nn.Module, place: Place | None) -> None:
        hook = Hook(place)
        self._hooks.append((hook, module.register_forward_hook(hook)))

    def _keep_slow_paths(self, model: nn.Module) -> None:
        """In evaluation mode torch's transformer layers run one kernel, unless there are hooks;
        encoders then give them nested tensors, which only this kernel takes.
        """
        for module in model.modules():
            if isinstance(module, nn.TransformerEncoderLayer):
                self._hook(module, None)
            elif isinstance(module, nn.TransformerEncoder):
                self._encoders.append((module, module.use_nested_tensor))
                module.use_nested_tensor = False

    def __deepcopy__(self, memo: object) -> Emulation:
        return self

    @property
    def layers(self) -> dict[str, str]:
        return {site.name: str(site.formats) for site, _, _ in self._sites}

    def totals(self) -> dict[str, int]:
        """Values of all casts so far, by "LAYER/TENSOR"."""
        return dict(self._notes.total)

    @property
    def measure(self) -> bool:
        """Whether casts also count what happens to values: may be set between steps."""
        return self._notes.measure

    @measure.setter
    def measure(self, value: bool) -> None:
        if value and not self._active:
            raise RuntimeError("this emulation has been removed: nothing is cast any more")
        if value and not self._notes.measure:
            self._notes.records = {}
        self._notes.measure = bool(value)

    @property
    def records(self) -> dict[str, dict[str, float]]:
        return self._notes.records

    def ledger(self, saved: Any = None) -> Ledger:
        """Bits before and after, of the last cast of each tensor. saved: what compresses saved
        tensors (torch_cgx.activations.compress_saved, or the result of compress), for a row of its
        own.
        """
        from torch_cgx.emulate.training.ledger import Ledger

        return Ledger(self._notes.entries.values(), saved)

    def remove(self) -> None:
        """The model, copies made of it since, and the optimizer are as before `apply`; values that
        a training has changed stay. A second call does nothing. RuntimeError: a layer is no more in
        the model, or has another class; then nothing is changed.
        """
        if not self._active:
            return
        self._check_unchanged()
        for module in {id(m): m for _, m, _ in self._sites}.values():
            modules.restore(module)
        for copied in {id(m): m for site, _, _ in self._sites for m in site.copies}.values():
            if modules.is_as_made(copied):
                modules.restore(copied)
        for hook, handle in self._hooks:
            hook.end()
            handle.remove()
        for encoder, nested in self._encoders:
            encoder.use_nested_tensor = nested
        if self._optimizer is not None:
            self._optimizer.remove()
        for module in self._marked:
            _emulated.discard(module)
        self._active, self._marked = False, []
        self._sites, self._outputs, self._hooks, self._encoders = [], [], [], []
        _forget_compiled()

    def _check_unchanged(self) -> None:
        model = self._model()
        places = [(module, name, True) for _, module, name in self._sites]
        for module, name, rounds in [*places, *((m, n, False) for m, n in self._outputs)]:
            try:
                now = None if model is None else model.get_submodule(name)
            except AttributeError:
                now = None
            if now is None:
                what = "is gone"
            elif now is not module:
                what = f"is another module, a {type(now).__name__}"
            elif rounds and not modules.is_as_made(module):
                what = f"has another class, {type(now).__name__}"
            else:
                continue
            raise RuntimeError(
                f"remove(): the model has changed since apply(): {name or 'the model'} {what}; "
                "allowed: the modules that apply() found, of the classes that they had then (shard "
                "and parametrize before). Nothing has been removed."
            )

    def __enter__(self) -> Emulation:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed training needs to round as one that was never stopped: the numbers of the
        next forward pass and of the optimizer's next step, and the amaxes of delayed scales.
        """
        scales = {
            f"{site.name}/{operand}": history.state()
            for site, _, _ in self._sites
            for operand, history in site.histories.items()
        }
        step = 0 if self._optimizer is None else self._optimizer.step
        return {"step": self._clock.next_step, "optimizer_step": step, "scales": scales}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """ValueError unless state_dict() of the same recipe and model can have returned it."""
        histories = {
            f"{site.name}/{operand}": history
            for site, _, _ in self._sites
            for operand, history in site.histories.items()
        }
        if not isinstance(state, Mapping) or set(state) != {"step", "optimizer_step", "scales"}:
            found = sorted(state) if isinstance(state, Mapping) else repr(state)
            raise ValueError(f"the state holds {found}; allowed: step, optimizer_step, scales")
        if not isinstance(state["scales"], Mapping):
            kind = type(state["scales"]).__name__
            raise ValueError(f"scales is of type {kind}; allowed: a dict")
        if set(state["scales"]) != set(histories):
            differ = sorted(set(state["scales"]) ^ set(histories))
            raise ValueError(
                f"the state is of another recipe or model: scales of {differ[0]!r}; allowed: those "
                "of this one"
            )
        for name in ("step", "optimizer_step"):
            value = state[name]
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
                raise ValueError(f"{name}={value!r}; allowed: integers of 0 to 2**63 - 1")
        for name, history in histories.items():
            history.check(name, state["scales"][name])
        for name, history in histories.items():
            history.load(state["scales"][name])
        self._clock.set_next_step(state["step"])
        if self._optimizer is not None:
            self._optimizer.step = state["optimizer_step"]

    def __repr__(self) -> str:
        name = self.recipe.get("name", "formats of one's own")
        parts = [f"{len(self._sites)} GEMM layers", f"{len(self._outputs)} outputs"]
        return f"Emulation({name}: {', '.join(parts)}, {len(self.exact)} layers exact)"


def _forget_compiled() -> None:
    """torch.compile does not look at classes and hooks of modules again."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


def apply(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    recipe: str | Mapping[str, Any] | None = None,
    *,
    gemm: Any = None,
    weights: Any = None,
    activations: Any = None,
    gradients: Any = None,
    gradient_maps: Any = None,
    optimizer_state: Any = None,
    layers: Mapping[str, Any] | None = None,
    filter: str | re.Pattern[str] | None = None,
    first_last: Any = None,
    seed: int = 0,
) -> Emulation:
    """Trains and evaluates a model as if it had other formats of numbers, until remove() is called:

        emulation = emulate.apply(model, optimizer, "mxfp8")

    recipe: a name of `emulate.recipes()`, or a dict as `emulate.recipe(name)` returns it. The other
        arguments replace its entries; each is a format, the name of one, or None.

    Where hardware rounds:
    gemm: of the operands of each GEMM and convolution, forward and backward, along its contraction;
        a format for all, or a dict by operand ("input", "weight", "gradient") or by GEMM
        ("forward", "dgrad", "wgrad"), with "hadamard" and "accumulate" (docs/emulated_training.md).
    first_last: "exact", the first and the last such layer of the model stay exact; "cast"; or how
        many, as (1, 2), or which shares, as (1, 0.15).
    layers: {regular expression of names: formats or "exact"}: others for these layers, which comes
        before first_last.

    Where memory rounds:
    activations, gradient_maps: outputs of modules, and gradients of these; once per tensor.
    gradients: of parameters, before the optimizer's step. A dict {"format": F, "aps": True} shifts
        each into the format's range first.
    weights: after the step; a dict may name classes of modules that stay exact ("except").
    optimizer_state: its floating-point tensors, after the step.

    optimizer: any torch.optim.Optimizer. None: the last three hold for each one that steps the
        model's parameters, also if it is made later, as trainers do.
    filter: a regular expression; only modules and parameters whose names it finds are emulated.
    seed: of stochastic rounding, whose numbers are others in each step, and on each rank.

    Linear layers, Conv1d to 3d, ConvTranspose1d to 3d, MultiheadAttention and transformers' Conv1D
    have GEMMs that can be emulated; a warning names modules with others. Works with
    DistributedDataParallel, FSDP2, autocast, GradScaler, activation checkpointing, torch.compile
    (which breaks its graph at module outputs that are cast).

    ValueError, TypeError: an argument is not allowed, the recipe is for layers that the model
    lacks, the model is emulated already, the optimizer has none of its parameters or a state of
    other things than tensors. Nothing has changed then.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is of type {type(model).__name__}; allowed: a torch.nn.Module")
    changes = {
        key: value
        for key, value in (
            ("gemm", gemm),
            ("weights", weights),
            ("activations", activations),
            ("gradients", gradients),
            ("gradient_maps", gradient_maps),
            ("optimizer_state", optimizer_state),
            ("layers", layers),
            ("first_last", first_last),
        )
        if value is not None
    }
    optimizer = _with_hooks(optimizer)
    wanted = settings(recipe, changes, filter, seed)
    check_model(model)
    plan = make_plan(model, wanted)
    check_plan(plan)
    _check_optimizer(model, optimizer, wanted, plan.optimizer)
    if plan.left:
        warn(f"cgx: emulate.apply leaves GEMMs inside of these modules exact: {named(plan.left)}")
    return Emulation(model, optimizer, wanted, plan)


def check_model(model: nn.Module) -> None:
    """ValueError: it, or a part of it, is emulated."""
    for name, module in model.named_modules():
        hooks = module._forward_hooks.values()
        hooked = any(isinstance(hook, Hook) and hook.casts for hook in hooks)
        if module in _emulated or modules.is_emulated(module) or hooked:
            raise ValueError(
                f"{name or 'the model'} is emulated already; allowed: one apply() with all "
                "formats, or remove() of the earlier one first"
            )


def check_plan(plan: Plan) -> None:
    for _, target, formats in plan.gemms:
        if formats.accumulation.fp32 or target.kind not in ("conv", "transposed"):
            continue
        try:
            transposed = target.kind == "transposed"
            check_geometry(transposed, len(target.module.kernel_size))  # type: ignore
        except NotImplementedError as error:
            raise ValueError(f"{target.name}: {error}") from None


def _with_hooks(optimizer: Any) -> torch.optim.Optimizer | None:
    """The optimizer that takes the steps: Accelerate's wrappers are optimizers without hooks."""
    found = optimizer
    while isinstance(found, torch.optim.Optimizer) and "_optimizer_step_pre_hooks" not in vars(
        found
    ):
        found = getattr(found, "optimizer", None)
    if optimizer is not None and not isinstance(found, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer is of type {type(optimizer).__name__}; allowed: a torch.optim.Optimizer"
        )
    return found


def _check_optimizer(model: nn.Module, optimizer: Any, wanted: Settings, used: bool) -> None:
    """used: the settings have formats of what an optimizer steps."""
    parameters = {id(one): name for name, one in model.named_parameters()}
    for name, one in model.named_parameters():
        if used and one.is_complex() and wanted.takes(name):
            raise TypeError(
                f"{name} is {one.dtype}; allowed with formats of weights, gradients or optimizer "
                "state: floating-point types, or filter= without it"
            )
    if optimizer is None:
        return
    own = [one for group in optimizer.param_groups for one in group["params"]]
    if not any(id(one) in parameters for one in own):
        raise ValueError("the optimizer has none of the model's parameters")
    if "optimizer_state" not in wanted.memory:
        return
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError(
            "the state of LBFGS has lists of tensors; allowed with formats of optimizer_state: "
            "optimizers whose state are tensors"
        )
    for one in own:
        if id(one) in parameters and wanted.takes(parameters[id(one)]):
            check_state(parameters[id(one)], optimizer.state.get(one, {}))
