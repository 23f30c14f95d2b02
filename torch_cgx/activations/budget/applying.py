"""`apply`: carries out a plan on a model, and takes it back."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torch_cgx.activations.budget.compiled import Compiled, remove_compiled, set_compiled
from torch_cgx.activations.budget.plan import Plan, Settings, checked, share_of
from torch_cgx.activations.budget.recompute import is_set, remove_forward, set_forward
from torch_cgx.activations.conversion.convert import Conversion, convert
from torch_cgx.activations.conversion.replaceable import Wanted, new_function, replacement
from torch_cgx.activations.projection.modules import settings_of
from torch_cgx.activations.saved.model import Compression, compress

_MARK = "_cgx_applied"  # attribute of a model with a plan; copies of the model have it, too
_FLAGS = {"gate": "gates", "norm": "norms", "dropout": "dropout"}  # and the arguments of convert


class Changes:
    """Settings that a model has, until remove() is called."""

    def __init__(
        self,
        model: nn.Module,
        settings: Settings,
        measure: bool = False,
        share: float | None = None,
    ) -> None:
        """Settings that are checked. share: of the activations, if the model is compiled."""
        self._undo = contextlib.ExitStack()
        self.compression: Compression | None = None
        try:
            self._convert(model, settings)
            for name, one in settings.items():
                if "checkpoint" in one:
                    module = model.get_submodule(name)
                    set_forward(module, one["checkpoint"] == "selective")
                    self._undo.callback(remove_forward, module)
            self._compress(model, settings, measure)
            if share is not None:
                set_compiled(model, Compiled(model, share))
                self._undo.callback(remove_compiled, model)
        except BaseException:
            self.remove()
            raise

    def _convert(self, model: nn.Module, settings: Settings) -> None:
        groups: dict[str, tuple[dict[str, Any], list[str]]] = {}
        for name, one in settings.items():
            for key, argument in _FLAGS.items():
                if key in one:  # in one group: convert knows that a gated MLP calls no act_fn
                    options, names = groups.setdefault("", ({}, []))
                    options[argument] = True
                    names.append(name)
        for name, one in settings.items():
            for key, argument in (("activation", "activations"), ("linear", "linear")):
                if key in one:
                    group = groups.setdefault(f"{key} {one[key]!r}", ({argument: one[key]}, []))
                    group[1].append(name)
        for options, names in groups.values():
            self._undo.callback(_converted(model, options, names).restore)

    def _compress(self, model: nn.Module, settings: Settings, measure: bool) -> None:
        saved = {name: one["saved"] for name, one in settings.items() if "saved" in one}
        if not saved:
            return
        groups: dict[str, list[str]] = {}
        for name, config in saved.items():
            groups.setdefault(repr(config), []).append(name)
        overrides = {
            f"^(?:{'|'.join(map(re.escape, names))})$": _full(saved[names[0]])
            for names in groups.values()
        }
        boundaries = frozenset(name for name in saved if "checkpoint" in settings[name])
        first = next(iter(overrides.values()))
        self.compression = compress(
            model, first, filter=_Filter(saved, boundaries), overrides=overrides, measure=measure
        )
        self._undo.callback(self.compression.remove)

    def remove(self) -> None:
        if self.compression is not None:
            self.compression.remove()  # RuntimeError before anything else is taken back
        self._undo.close()


class _Filter:
    """Of `compress`, and picklable: what is saved by the modules of a plan, and of the inputs of
    checkpoints what has a gradient: masks and positions stay as they are.
    """

    def __init__(self, names: Mapping[str, Any], boundaries: frozenset[str]) -> None:
        self._names, self._boundaries = frozenset(names), boundaries

    def __call__(self, name: str, tensor: Tensor) -> bool:
        return name in self._names and (name not in self._boundaries or tensor.requires_grad)


def _full(config: Any) -> dict[str, Any]:
    """With a codec, so that `compress` takes nothing from its own configuration."""
    given = {"codec": config} if isinstance(config, str) else dict(config)
    return {"codec": "maxmin", **given}


def _converted(model: nn.Module, options: dict[str, Any], names: list[str]) -> Conversion:
    chosen = {id(model.get_submodule(name)) for name in names}
    return convert(model, **options, filter=lambda _, module: id(module) in chosen)


class Applied:
    """What `apply` has set up. plan: its settings, of which later changes change nothing.

    step, state_dict() and load_state_dict() are of `Compression`: keep them with your checkpoints,
    and a resumed run rounds as one that was never stopped. Without "saved" in the plan the step
    stays 0.
    """

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        self.plan = plan
        self._model = model
        self._changes: Changes | None = Changes(model, plan.modules, share=share_of(plan))
        model.__dict__[_MARK] = True

    @property
    def step(self) -> int:
        compression = self._changes.compression if self._changes is not None else None
        return 0 if compression is None else compression.step

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """ValueError unless state_dict() can have returned it."""
        if self._changes is not None and self._changes.compression is not None:
            self._changes.compression.load_state_dict(state)
        elif dict(state) != {"step": 0}:
            raise ValueError(f"the state holds {state!r}; allowed without compression: step 0")

    def remove(self) -> None:
        """The model keeps everything again: its own modules, with the parameters of now. A second
        call changes nothing. RuntimeError: its forward pass is running.
        """
        if self._changes is not None:
            self._changes.remove()
            self._changes = None
            self._model.__dict__.pop(_MARK, None)


def apply(model: nn.Module, plan: Mapping[str, Any]) -> Applied:
    """Carries out a plan of `fit`, or a dict of the same form: one that JSON has kept, or that was
    written or edited by hand. Its `modules` are described at `Plan`. The forward pass computes the
    same values as before; with "compile" up to rounding. Until remove() is called on what this
    returns.

    Call it before torch.compile, fully_shard and DistributedDataParallel. A plan with "saved"
    does not go with torch.compile (RuntimeError in the forward pass): the modules of a compiled
    graph are not told apart. A plan with "compile" compiles at the first forward pass that has a
    gradient, and raises there what torch.compile raises; torch.compile of the model around it
    changes nothing.

    Everything is checked before anything is changed. TypeError: no module, no dict. ValueError: an
    unknown module, key or value, which is named; a setting that does not fit its module, with the
    reason; a model that has a plan already, is compiled, or is wrapped by FullyShardedDataParallel.
    """
    check_model(model)
    settings = checked(plan)
    check_settings(model, settings)
    if share_of(plan) is not None and is_set(model):
        raise ValueError("the plan has 'compile', but the model's forward is set on the object")
    return Applied(model, Plan({**plan, "modules": settings}))


def check_model(model: Any) -> None:
    """TypeError, ValueError: a model that cannot have a plan."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is of type {type(model).__name__}; allowed: a torch.nn.Module")
    compiled = hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None)
    if isinstance(model, torch.jit.ScriptModule) or compiled:
        raise ValueError(
            f"model is of type {type(model).__name__}, which is compiled; allowed: the model before"
        )
    for name, module in model.named_modules():
        if _MARK in module.__dict__:
            raise ValueError(
                f"{name or 'the model'} has a plan already; call remove() on what apply returned"
            )
        if any(kind.__name__ == "FullyShardedDataParallel" for kind in type(module).__mro__):
            raise ValueError("model is wrapped by FullyShardedDataParallel; allowed: before that")


def check_settings(model: nn.Module, settings: Settings) -> None:
    """ValueError: a module that the model lacks, or a setting that its module cannot have."""
    modules = dict(model.named_modules(remove_duplicate=False))
    seen: dict[tuple[int, str], str] = {}
    for name, one in settings.items():
        module = modules.get(name)
        if module is None:
            shown = [known for known in modules if known]
            more = ", ..." if len(shown) > 12 else ""
            raise ValueError(
                f"modules has {name!r}, which {type(model).__name__} lacks; it has: "
                f"{', '.join(shown[:12])}{more}"
            )
        other = seen.setdefault((id(module), ""), name)
        if other != name:
            raise ValueError(f"modules has {name!r} and {other!r}, which are one module")
        for key in one:
            why = _why_not(module, key, one[key], name)
            if why:
                raise ValueError(f"modules[{name!r}][{key!r}]={one[key]!r}: {why}")


def _why_not(module: nn.Module, key: str, value: Any, name: str) -> str | None:
    if key == "saved":
        return None
    if key == "checkpoint":
        if not name:
            return "the model as a whole is not computed again; allowed: modules inside of it"
        if is_set(module):
            return "its forward is set on the object"
        return None
    kind = type(module).__name__
    makers: dict[str, Callable[[], Wanted]] = {
        "activation": lambda: Wanted(value, False, False, False),
        "linear": lambda: Wanted(None, False, False, False, settings_of(value, "linear")),
        "norm": lambda: Wanted(None, True, False, False),
        "dropout": lambda: Wanted(None, False, True, False),
        "gate": lambda: Wanted(None, False, False, True),
    }
    wanted = makers[key]()
    function = new_function(module, wanted)
    if function is not None:
        return function if isinstance(function, str) else None
    if not name:
        return "no module holds the model; allowed: modules inside of it"
    found = replacement(module, wanted)
    return found if isinstance(found, str) else f"{kind} is of another kind" * (found is None)
