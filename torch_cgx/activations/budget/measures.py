"""Measures that leave the gradient exact: dropout, gates and norms that keep less."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import nn

from torch_cgx.activations.budget.applying import Changes
from torch_cgx.activations.budget.plan import Settings
from torch_cgx.activations.budget.survey import inside
from torch_cgx.activations.report.report import Report
from torch_cgx.activations.report.saves import Stored
from torch_cgx.activations.report.savings import convertible

Memory = Callable[[], Report]


def exact_measures(model: nn.Module, memory: Memory, exact: Report) -> Settings:
    """Those that save bytes. memory: measures the model as it is. exact: it without changes.

    All are tried at once. Each counts what only its module keeps: before, less afterwards. A norm
    that keeps its output gains where another module keeps that anyway.
    """
    where = convertible(model)
    names = {"gate": where.gates, "norm": where.norms, "dropout": where.dropout}
    found: Settings = {name: {key: True} for key, one in names.items() for name in one if name}
    gated = [name for name, one in found.items() if "gate" in one]
    found = {n: s for n, s in found.items() if n in gated or not any(inside(n, g) for g in gated)}
    while found:
        changes = Changes(model, found)
        try:
            after = memory()
        finally:
            changes.remove()
        gains = {name: _own(exact.storages, name) - _own(after.storages, name) for name in found}
        kept = {name: one for name, one in found.items() if gains[name] > 0}
        if len(kept) == len(found):
            return found if after.total < exact.total else {}
        found = kept
    return {}


def _own(stored: Iterable[Stored], name: str) -> int:
    """Bytes of storages that nothing outside of the module keeps."""
    return sum(one.nbytes for one in stored if all(inside(save.module, name) for save in one.saves))
