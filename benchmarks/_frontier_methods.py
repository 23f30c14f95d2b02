"""The methods of benchmarks/frontier.py: what torch has to keep less for backward, and ours.

Each method is a function of a `Case` that returns the model whose gradients count and a function
that runs its forward pass and returns the loss. The loss runs outside of contexts that compress.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from benchmarks._frontier_models import Case, in_order
from torch_cgx import activations
from torch_cgx.activations.budget.fit import Fitting

EXACT, COMPILED = "exact", "compiled"
BUCKET = 256
FREE = {"norms": True, "dropout": True, "gates": True}
# Families of rows: torch's own means, ours with fixed settings, and plans of activations.fit.
TORCH, OURS, FIT = "torch", "ours", "fit"

Forward = Callable[[], Tensor]
Built = tuple[nn.Module, Forward]
Context = Callable[[], contextlib.AbstractContextManager[Any]]


class NotMeasured(Exception):
    """A method cannot run here; the text says why."""


@dataclass(frozen=True)
class Method:
    """compiled: torch.compile runs in it, so it is also compared with the compiled exact step.
    budget: bytes that a plan may keep, limit: time that it may take; the exact step has 1 of each.
    """

    name: str
    family: str
    build: Callable[[Case], Built]
    compiled: bool = False
    budget: float | None = None
    limit: float | None = None


def _saving(bits: int) -> Context:
    config = {"codec": "maxmin", "bits": bits, "bucket_size": BUCKET}
    return lambda: activations.compress_saved(config)


def _forward(
    case: Case, model: Callable[[Tensor], Tensor], context: Context = contextlib.nullcontext
) -> Forward:
    def forward() -> Tensor:
        with context():
            logits = model(case.tokens)
        return case.loss(logits)

    return forward


# ---- eager


def _plain(case: Case, context: Context = contextlib.nullcontext) -> Built:
    return case.model, _forward(case, case.model, context)


def _converted(
    case: Case, options: dict[str, Any], context: Context = contextlib.nullcontext
) -> Built:
    model = case.copy()
    activations.convert(model, **options)
    return model, _forward(case, model, context)


def _checkpointed(
    case: Case,
    layers: int = 1,
    context: Context = contextlib.nullcontext,
    context_fn: Callable[[], Any] | None = None,
) -> Built:
    """layers: in one checkpoint; context_fn: of a selective one."""
    model = case.copy()
    options: dict[str, Any] = {} if context_fn is None else {"context_fn": context_fn}

    def through(blocks: nn.ModuleList, x: Tensor) -> Tensor:
        for start in range(0, len(blocks), layers):
            some = nn.ModuleList(list(blocks)[start : start + layers])
            x = checkpoint(in_order, some, x, use_reentrant=False, **options)
        return x

    model.through = through
    return model, _forward(case, model, context)


def _products() -> Any:
    """Keeps the results of matrix products and of attention, computes the rest again."""
    ops = torch.ops.aten
    attention = ops._scaled_dot_product_flash_attention_for_cpu.default
    kept = [ops.mm.default, ops.addmm.default, ops.bmm.default, attention]
    return functools.partial(create_selective_checkpoint_contexts, kept)


# ---- compiled


def _options(budget: float, fp8: bool) -> Any:
    """torch's settings while it compiles. size_in_mb, allowed_dtypes: by default the pass takes
    tensors of bfloat16 of 100 MB.
    """
    import torch._functorch.config
    import torch._inductor.config

    options = contextlib.ExitStack()
    patch = torch._functorch.config.patch(activation_memory_budget=budget)  # type: ignore[attr-defined]
    options.enter_context(patch)
    if fp8:
        settings = {
            "quant_type": "torch.float8_e5m2",
            "use_scaling": True,
            "size_in_mb": 0.0,
            "exclude_primals": True,
            "allowed_dtypes": "torch.float32",
        }
        passes = {"activation_quantization_aten_pass": settings}
        patch = torch._inductor.config.patch(post_grad_fusion_options=passes)  # type: ignore[attr-defined]
        options.enter_context(patch)
    return options


def _compiled(
    case: Case,
    budget: float = 1.0,
    fp8: bool = False,
    context: Context = contextlib.nullcontext,
) -> Built:
    """NotMeasured, with torch's error, where it cannot be compiled here."""
    name = f"budget {budget}, fp8 {fp8}"
    if name not in case.compiled:

        def run(tokens: Tensor) -> Tensor:
            logits: Tensor = case.model(tokens)
            return logits

        # torch.compile finds what it has compiled by the code object, whatever the settings.
        run.__code__ = run.__code__.replace()
        function = torch.compile(run)
        try:
            with _options(budget, fp8):  # backward is compiled when it first runs
                case.loss(function(case.tokens)).backward()
        except (RuntimeError, AssertionError, OSError) as error:
            said = str(error).strip().splitlines() or [""]
            raise NotMeasured(f"{type(error).__name__}: {said[0]}") from error
        case.model.zero_grad()
        case.compiled[name] = function
    return case.model, _forward(case, case.compiled[name], context)


# ---- activations.fit


def _fitted(case: Case, budget: str, time: float | None) -> Built:
    if case.fitting is None:
        case.fitting = Fitting(case.copy(), case.tokens, case.loss)
    try:
        plan = case.fitting.plan(budget, time)
    except ValueError as error:  # nothing meets the budget
        raise NotMeasured(str(error).splitlines()[0]) from error
    model = case.copy()
    activations.apply(model, plan)
    return model, _forward(case, model)


# ---- all of them


def _of(build: Callable[..., Built], *args: Any, **options: Any) -> Callable[[Case], Built]:
    return lambda case: build(case, *args, **options)


_SAVED_ON_CPU: Context = torch.autograd.graph.save_on_cpu
_CONVERTED = {**FREE, "activations": 3}
_TORCH = (
    Method(EXACT, TORCH, _plain),
    Method("checkpoint, each layer", TORCH, _checkpointed),
    Method("checkpoint, each 2 layers", TORCH, _of(_checkpointed, 2)),
    Method("checkpoint, products kept", TORCH, _of(_checkpointed, context_fn=_products())),
    Method("save_on_cpu", TORCH, _of(_plain, _SAVED_ON_CPU)),
    Method(COMPILED, TORCH, _compiled, compiled=True),
    *(
        Method(f"compiled, budget {budget}", TORCH, _of(_compiled, budget), compiled=True)
        for budget in (0.5, 0.2, 0.1, 0.05)
    ),
    Method("compiled, fp8", TORCH, _of(_compiled, fp8=True), compiled=True),
)
_OURS = (
    Method("convert, exact", OURS, _of(_converted, FREE)),
    Method("convert, 3-bit functions", OURS, _of(_converted, _CONVERTED)),
    *(Method(f"saved, {bits} bits", OURS, _of(_plain, _saving(bits))) for bits in (8, 4, 3, 2)),
    *(
        Method(f"convert, saved {bits} bits", OURS, _of(_converted, _CONVERTED, _saving(bits)))
        for bits in (8, 4, 2)
    ),
    *(
        Method(f"checkpoint, {bits} bits", OURS, _of(_checkpointed, context=_saving(bits)))
        for bits in (8, 4)
    ),
    *(Method(f"projection {keep}", OURS, _of(_converted, {"linear": keep})) for keep in (0.2, 0.1)),
    *(
        Method(
            f"projection {keep}, saved 4 bits",
            OURS,
            _of(_converted, {"linear": keep, **FREE}, _saving(4)),
        )
        for keep in (0.2, 0.1)
    ),
    *(
        Method(
            f"compiled, saved {bits} bits",
            OURS,
            _of(_compiled, context=_saving(bits)),
            compiled=True,
        )
        for bits in (8, 4)
    ),
    *(
        Method(
            f"compiled, budget 0.2, saved {bits} bits",
            OURS,
            _of(_compiled, 0.2, context=_saving(bits)),
            compiled=True,
        )
        for bits in (8, 4)
    ),
)
# Budgets in percent of the exact bytes, and the largest time of a step, by the exact one.
FITS: tuple[tuple[int, float | None], ...] = (
    *((percent, 1.1) for percent in (50, 30, 20, 10, 5)),
    (10, None),
)
_FITS = tuple(
    Method(
        f"fit {percent} %" + ("" if time else ", any time"),
        FIT,
        _of(_fitted, f"{percent}%", time),
        budget=percent / 100,
        limit=time,
    )
    for percent, time in FITS
)
METHODS = {method.name: method for method in (*_TORCH, *_OURS, *_FITS)}
QUICK = (EXACT, "checkpoint, each layer", "save_on_cpu", "saved, 8 bits", "saved, 2 bits")
