"""What each means of `torch_cgx.activations` would save, from the tensors that a report recorded.

Arithmetic, not a measurement: of every storage, what it holds now less what it would hold. A
storage counts only where nothing else keeps it. Tables that all modules share (32 bytes at 3 bits)
are not counted, nor are integers, which `compress_saved` packs by their values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch

from torch_cgx import codecs
from torch_cgx.activations.report import kinds
from torch_cgx.activations.report.saves import Save, Stored

BITS = 3
KEEP = 0.2  # of the inputs of linear layers
_CODEC = {"codec": "maxmin", "bits": 4, "bucket_size": 256}
_MIN_SIZE = 1024  # compress_saved leaves shorter tensors as they are
_ENCODED = (torch.float32, torch.float16, torch.bfloat16)
_UNITS = {"Silu": "swiglu", "Gelu": "geglu", "Relu": "reglu"}  # what can be fused
_COMPRESS = f"with activations.compress_saved(config={_CODEC}):".replace("'", '"')
_Names = Collection[str]


@dataclasses.dataclass(frozen=True)
class Convertible:
    """Names of the modules that `convert` replaces, by its argument."""

    activations: _Names = ()
    norms: _Names = ()
    dropout: _Names = ()
    gates: _Names = ()
    linear: _Names = ()


def convertible(model: torch.nn.Module) -> Convertible:
    """Asks what `convert` asks; changes nothing."""
    from torch_cgx.activations.conversion.replaceable import Wanted, new_function, replacement
    from torch_cgx.activations.projection.modules import settings_of

    each: dict[str, Any] = dict.fromkeys(("norms", "dropout", "gates"), True)
    each |= {"activations": BITS, "linear": settings_of(KEEP, "linear")}
    nothing: dict[str, Any] = dict.fromkeys(("norms", "dropout", "gates"), False)
    found: dict[str, set[str]] = {}
    for argument, value in each.items():
        wanted = Wanted(**{"activations": None, **nothing, argument: value})
        found[argument] = set()
        for name, module in model.named_modules():
            new = replacement(module, wanted)
            if isinstance(new, torch.nn.Module) or callable(new_function(module, wanted)):
                found[argument].add(name)
    return Convertible(**found)


def savings(stored: list[Stored], where: Convertible) -> list[dict[str, Any]]:
    """A dict for each measure that saves something: "measure", "bytes", "line" (what one types).

    A fused gate keeps the input of its activation as it is, so that measures together can save less
    than their sum.
    """
    functions = _activations(stored, where.activations)
    modules = sum(one.nbytes for one in functions if one.is_module)
    masks, mask_calls = _masks(stored, where.dropout)
    gates, gate_calls, unit, fused = _gates(stored, where.gates)
    both = sum(one.nbytes for one in functions if one.is_module and one.sequence in fused)
    converted = [
        (f"activation functions at {BITS} bits", modules, f"activations={BITS}"),
        ("norms that keep their output", _norms(stored, where.norms), "norms=True"),
        ("dropout that draws its mask again", masks, "dropout=True"),
        ("gates that keep their inputs", gates, "gates=True"),
    ]
    converted = [one for one in converted if one[1] > 0]
    rows = [_row(what, n, f"activations.convert(model, {words})") for what, n, words in converted]
    if len(rows) > 1:
        words = ", ".join(words for _, _, words in converted)
        total = sum(n for _, n, _ in converted) - both
        rows.append(_row("all of these", total, f"activations.convert(model, {words})"))
    # convert() replaces modules; functions that a forward method calls are for the reader to edit.
    called: dict[tuple[str, int], int] = {}
    for one in functions:
        if not one.is_module:
            key = one.name, one.bits
            called[key] = called.get(key, 0) + one.nbytes
    for (name, bits), nbytes in called.items():
        what = f"{name} in forward at {bits} bit{'s' if bits > 1 else ''}"
        rows.append(_row(what, nbytes, f"activations.functional.{name}(x, bits={bits})"))
    what = "dropout in forward that draws its mask again"
    rows.append(_row(what, mask_calls, "activations.Dropout(p)"))
    line = f"activations.functional.{unit}(gate, up, weight, bias)"
    rows.append(_row("gates in forward that keep their inputs", gate_calls, line))
    line = f"activations.convert(model, linear={KEEP})"
    rows.append(
        _row("linear layers that keep a fifth of their input", _inputs(stored, where.linear), line)
    )
    rows.append(_row("any saved tensor at 4 bits", _compressed(stored), _COMPRESS))
    return [row for row in rows if row["bytes"] > 0]


def _row(measure: str, nbytes: int, line: str) -> dict[str, Any]:
    return {"measure": measure, "bytes": nbytes, "line": line}


def packed(numel: int, bits: int) -> int:
    """Bytes of `numel` codes."""
    return (bits * numel + 7) // 8


def _only(one: Stored, allowed: Callable[[Save], bool]) -> bool:
    return all(save.plain and allowed(save) for save in one.saves)


@dataclasses.dataclass
class _Function:
    """An activation function that codes could serve. nbytes: that they would save."""

    sequence: int
    name: str
    bits: int
    is_module: bool
    nbytes: int


def _activations(stored: Iterable[Stored], modules: _Names) -> list[_Function]:
    found: dict[int, _Function] = {}
    for one in stored:
        first = one.saves[0]
        operation = kinds.operation(first)
        smooth = operation in kinds.SMOOTH_NODES
        if not (smooth or operation in kinds.STEP_NODES):
            continue
        if not first.plain or {save.sequence for save in one.saves} != {first.sequence}:
            continue
        if first.sequence in found:  # LogSigmoid keeps two tensors; codes take the place of both
            found[first.sequence].nbytes += one.nbytes
            continue
        bits = BITS if smooth else 1
        found[first.sequence] = _Function(
            first.sequence,
            first.function or {"LeakyRelu": "leaky_relu"}.get(operation, operation.lower()),
            bits,
            first.module in modules,
            one.nbytes - packed(first.numel, bits),
        )
    return list(found.values())


def _norms(stored: list[Stored], modules: _Names) -> int:
    """What norms keep beyond a value per row, less their outputs that no other node keeps."""
    calls = {save.call for one in stored for save in one.saves if save.module in modules}
    made = {save.sequence: save.call for one in stored for save in one.saves if save.call in calls}
    kept = {
        made[save.producer]
        for one in stored
        for save in one.saves
        if save.producer in made and save.call != made[save.producer]
    }
    total, outputs, rows = 0, dict.fromkeys(calls - kept, 0), set()
    for one in stored:
        first = one.saves[0]
        for save in one.saves:
            if save.call in outputs and _is_whole(save):
                outputs[save.call] = save.numel * save.dtype.itemsize
        if first.call not in calls or {save.call for save in one.saves} != {first.call}:
            continue
        if _is_whole(first) or first.call in rows:
            total += one.nbytes
        elif kinds.operation(first) == "NativeLayerNorm":
            rows.add(first.call)  # keeps two values per row, of which one is needed
    return total - sum(outputs.values())


def _is_whole(save: Save) -> bool:
    """Not a weight, and not a value per row."""
    return bool(save.size) and save.numel > save.size[-1] > 1


def _masks(stored: Iterable[Stored], modules: _Names) -> tuple[int, int]:
    """Bytes saved in modules, and by functions that are called. A replayed mask takes no bytes."""
    gain = [0, 0]
    for one in stored:
        first = one.saves[0]
        fits = first.kind == kinds.MASK and len(one.saves) == 1 and first.plain
        if fits and (first.module in modules or first.function == "dropout"):
            gain[first.module not in modules] += one.nbytes
    return gain[0], gain[1]


def _gates(stored: Iterable[Stored], gated: _Names) -> tuple[int, int, str, set[int]]:
    """The activation that is a factor of a gate, and the product that the next linear layer keeps:
    bytes in modules of `gated`; in others; the function of the last of these; numbers of the
    activations' nodes in modules of `gated`.
    """
    by_node: dict[int, list[Save]] = {}
    for one in stored:
        for save in one.saves:
            by_node.setdefault(save.sequence, []).append(save)
    functions = {
        number: kinds.operation(saves[0])
        for number, saves in by_node.items()
        if kinds.operation(saves[0]) in _UNITS
    }
    gates = {
        number: saves[0].module
        for number, saves in by_node.items()
        if kinds.is_gate(saves) and any(save.producer in functions for save in saves)
    }
    gain, unit = [0, 0], ""
    for one in stored:
        first = one.saves[0]
        if _only(one, lambda save: save.sequence in gates and save.producer in functions):
            module = gates[first.sequence]
        elif _only(one, lambda save: save.kind == kinds.LINEAR and save.producer in gates):
            module = gates[first.producer or 0]
        else:
            continue
        gain[module not in gated] += one.nbytes
        if module not in gated and first.producer in functions:
            unit = _UNITS[functions[first.producer]]
    fused = {
        save.producer
        for number, saves in by_node.items()
        if gates.get(number) in gated
        for save in saves
        if save.producer in functions
    }
    return gain[0], gain[1], unit or "reglu", fused  # of reglu only the product counts


def _inputs(stored: Iterable[Stored], modules: _Names) -> int:
    """Inputs that only linear layers keep, less the rows that stay, their numbers and mean."""
    total = 0
    for one in stored:
        first = one.saves[0]
        if not _only(one, lambda save: save.kind == kinds.LINEAR and save.module in modules):
            continue
        if len(first.size) < 2 or first.cast:
            continue
        rows = int(KEEP * first.numel / first.size[-1] + 1e-9)
        if rows:
            row = first.size[-1] * first.dtype.itemsize
            total += one.nbytes - rows * (row + 4) - row
    return total


def _compressed(stored: Iterable[Stored]) -> int:
    codec = codecs.MaxMin(bits=4, bucket_size=256)
    total = 0
    for one in stored:
        if not _only(one, lambda save: not save.cast):
            continue
        numel = min(one.numel, sum(dict(save.extent for save in one.saves).values()))
        # On the CPU a dropout keeps a mask of two values, which take a bit, too.
        first = one.saves[0]
        if one.dtype == torch.bool or (first.kind == kinds.MASK and "dropout" in first.function):
            total += one.nbytes - packed(one.numel, 1)
        elif one.dtype in _ENCODED and numel >= _MIN_SIZE:
            total += max(0, one.nbytes - codec.encoded_bytes(numel, one.dtype))
    return total
