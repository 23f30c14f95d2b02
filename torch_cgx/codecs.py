"""Codecs on tensors: they encode a run of numbers to bytes and decode it again.

They run the same code as collectives do::

    codec = torch_cgx.codecs.MaxMin(bits=4, bucket_size=512)
    payload = codec.encode(gradient)  # uint8, about numel * 4 / 8 bytes
    restored = codec.decode(payload, numel=gradient.numel())
    error = codec.roundtrip(gradient) - gradient

The classes follow from the engine's declarations (csrc/codec/families/): one for each family, with
a field for each of its parameters. They are frozen dataclasses.

Payloads depend on the arguments only: not on the machine, its SIMD level or the number of threads,
nor on whether the tensor is on the CPU or on a GPU. Long tensors on the CPU use as many threads as
`torch.set_num_threads()` allows. On a GPU everything goes on the current stream of the tensor's
device, and the CPU waits for nothing; not inside `torch.cuda.graph` (RuntimeError).
"""

from __future__ import annotations

import dataclasses
import textwrap
from typing import Any

import torch

from torch_cgx import _C, _traced

# Each saves a look-up of an attribute: a call on a short tensor takes only two microseconds.
_Tensor = torch.Tensor
_is_compiling = torch.compiler.is_compiling


class Codec:
    """Base class of all codecs of this module. Not itself a codec: calling it is a TypeError."""

    _engine: _C.Codec
    _text: str  # how operators name it

    def __init__(self) -> None:
        raise TypeError(f"Codec is a base class; allowed: {', '.join(__all__[3:])}, or make()")

    def encode(
        self,
        tensor: torch.Tensor,
        *,
        sequence: int = 0,
        number: int = 0,
        rank: int = 0,
        index: int = 0,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The payload of ``tensor``: uint8, of shape ``(encoded_bytes(numel, dtype),)``.

        Args:
            tensor: on the CPU or a GPU, float32, float16 or bfloat16, any shape and strides; values
                are taken in row-major order. The payload is on the same device.
            sequence: number of the call or of the training's step, 0 to 2**64 - 1. With ``number``,
                ``rank`` and the codec's seed it is the key of stochastic rounding, and without
                meaning for other rounding: equal keys give equal payloads.
            number: of the tensor among those of a step, 0 to 2**63 - 1.
            rank: 0 to 2**31 - 1; 0 on all ranks for tensors that ranks hold alike.
            index: number of the first value within a longer run, 0 to 2**63 - 1: the counter of
                stochastic rounding.
            out: written and returned, in place of a new tensor; of the payload's size.

        Raises:
            TypeError: another dtype or layout, or an argument of another type.
            ValueError: another device, a wrong size of ``out``, an ``out`` whose elements share
                memory, or a number out of range.
            RuntimeError: the tensor requires a gradient, which a payload cannot carry; or on a
                GPU: the driver or the kernels are not available, or a graph is being captured.
        """
        _check_key(sequence, number, rank, index)
        if not isinstance(tensor, _Tensor) or not (out is None or isinstance(out, _Tensor)):
            raise _no_tensor(tensor=tensor, out=out)
        if _is_compiling():
            return _traced.encode(tensor, self._text, (sequence, number, rank, index), out)
        return self._engine.encode(tensor, sequence, rank, index, out, number)

    def decode(
        self,
        payload: torch.Tensor,
        out: torch.Tensor | None = None,
        *,
        numel: int | None = None,
        dtype: torch.dtype | None = None,
        add: bool = False,
    ) -> torch.Tensor:
        """The values of a payload.

        Args:
            payload: uint8, on the CPU or a GPU, one dimension.
            out: written and returned; its shape says how many values the payload holds. On the
                payload's device, float32, float16 or bfloat16, any strides.
            numel: how many values the payload holds. By default ``out.numel()``, and without
                ``out`` the largest count whose payload has this size: lengths of less than a byte
                apart share one, so state ``numel`` where the exact count matters.
            dtype: type of the tensor that was encoded, and of the result where there is no ``out``.
                By default the type of ``out``, and float32 without ``out``.
            add: adds the values to ``out``, in float32, and rounds once to its type.

        Returns:
            ``out``, or a new tensor of shape ``(numel,)`` on the payload's device.

        Raises:
            TypeError: a wrong dtype or layout.
            ValueError: a wrong device; a payload whose size does not fit the count; an ``out``
                whose elements share memory (an expanded tensor); ``add`` without ``out``.
            RuntimeError: ``out`` requires a gradient; or on a GPU: the driver or the kernels are
                not available, or a graph is being captured.
        """
        if numel is not None:
            _check_int("numel", numel, 0, 2**60)
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise TypeError(f"dtype is {dtype!r}, allowed: float32, float16, bfloat16")
        if not isinstance(add, bool):
            raise TypeError(f"add is {add!r}, allowed: True or False")
        if not isinstance(payload, _Tensor) or not (out is None or isinstance(out, _Tensor)):
            raise _no_tensor(payload=payload, out=out)
        if _is_compiling():
            return _traced.decode(payload, self._text, out, numel, dtype, add)
        return self._engine.decode(payload, out, numel, dtype, add)

    def roundtrip(
        self,
        tensor: torch.Tensor,
        *,
        sequence: int = 0,
        number: int = 0,
        rank: int = 0,
        index: int = 0,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``tensor`` encoded and decoded, as a receiver gets it: a new tensor of the same shape and
        dtype, or ``out``, which may be ``tensor``. It takes one pass over the values, and makes no
        payload. Other arguments and errors as for encode(). A backward pass through the result
        raises RuntimeError."""
        _check_key(sequence, number, rank, index)
        if not isinstance(tensor, _Tensor) or not (out is None or isinstance(out, _Tensor)):
            raise _no_tensor(tensor=tensor, out=out)
        if _is_compiling():
            return _traced.roundtrip(tensor, self._text, (sequence, number, rank, index), out)
        return self._engine.roundtrip(tensor, sequence, rank, index, out, number)

    def encoded_bytes(self, numel: int, dtype: torch.dtype = torch.float32) -> int:
        """Exact size in bytes of the payload of ``numel`` values of type ``dtype``."""
        _check_int("numel", numel, 0, 2**60)
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"dtype is {dtype!r}, allowed: float32, float16, bfloat16")
        return self._engine.encoded_bytes(numel, dtype)


def _check_int(field: str, value: object, low: int, high: int) -> None:
    if isinstance(value, torch.SymInt):  # torch.export: the operator checks its value
        return
    if isinstance(value, bool) or not isinstance(value, int):
        kind = type(value).__name__
        raise TypeError(f"{field} is {value!r} ({kind}), allowed: an int from {low} to {high}")
    if not low <= value <= high:
        raise ValueError(f"{field} is {value}, allowed: {low} to {high}")


def _check_key(sequence: object, number: object, rank: object, index: object) -> None:
    # The usual case first.
    if sequence is number is rank is index and sequence == 0 and type(sequence) is int:
        return
    _check_int("sequence", sequence, 0, 2**64 - 1)
    _check_int("number", number, 0, 2**63 - 1)
    _check_int("rank", rank, 0, 2**31 - 1)
    _check_int("index", index, 0, 2**63 - 1)


def _no_tensor(**arguments: object) -> TypeError:
    """Of arguments that are not all tensors: names the first other one."""
    other = [(what, one) for what, one in arguments.items() if not isinstance(one, torch.Tensor)]
    return TypeError(
        f"{other[0][0]} is of type {type(other[0][1]).__name__}, allowed: a torch.Tensor"
    )


def _field_lines(row: dict[str, Any]) -> list[str]:
    """The lines about one field, of at most 96 characters."""
    meaning, allowed = row["meaning"], row["allowed"]
    if row["type"] == "bool":  # declared for the environment, where 1 means True
        meaning, allowed = meaning.replace("1: ", "True: ", 1), "True or False"
    elif row["type"] == "str":
        allowed = ", ".join(f'"{choice}"' for choice in row["choices"])
    text = f"{row['name']}: {meaning}. Allowed: {allowed}."
    return textwrap.wrap(text, 96, initial_indent=" " * 4, subsequent_indent=" " * 8)


def _docstring(family: dict[str, Any], fields: list[dict[str, Any]]) -> str:
    lines = [*textwrap.wrap(f"{family['meaning']}.", 96), "", family["doc"], "", "Args:"]
    for row in fields:
        lines += _field_lines(row)
    lines += [
        "",
        "Raises:",
        "    ValueError, TypeError: a field is out of range or of another type; the text names the",
        "        field, its value and the allowed values.",
    ]
    return "\n".join(lines)


def _class_of(family: dict[str, Any]) -> type[Codec]:
    """The class of a family of the engine: a frozen dataclass of its parameters."""
    # A parameter that can have one value only is no field of the class.
    rows = [p for p in family["parameters"] if p["kind"] != "integer" or p["low"] != p["high"]]
    name = family["python"]

    def make_engine(self: Any) -> None:
        given = {row["name"]: getattr(self, row["name"]) for row in rows}
        codec = _C.codec_of(f"{name}: ", family["name"], given)
        for field in given:  # canonical: an int for a numpy integer, True for 1
            object.__setattr__(self, field, codec.parameters[field])
        object.__setattr__(self, "_engine", codec)
        object.__setattr__(self, "_text", codec.describe())

    def reduce(self: Any) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, row["name"]) for row in rows)

    types = {"int": int, "bool": bool, "str": str}
    made: type[Codec] = dataclasses.make_dataclass(
        name,
        [(row["name"], types[row["type"]], row["value"]) for row in rows],
        bases=(Codec,),
        frozen=True,
        namespace={
            "__doc__": _docstring(family, rows),
            "__module__": __name__,
            "__post_init__": make_engine,
            "__reduce__": reduce,
        },
    )
    return made


def _by_name() -> dict[str, tuple[type[Codec], dict[str, Any]]]:
    """Name that users give -> its class, and the parameters that follow from the name."""
    found: dict[str, tuple[type[Codec], dict[str, Any]]] = {}
    for family in _C.families():
        if not family["python"]:
            continue
        made = _class_of(family)
        variant = family["variant"]
        if not variant:
            found[family["name"]] = made, {}
            continue
        (row,) = (p for p in family["parameters"] if p["name"] == variant)
        for choice in row["choices"]:
            found[choice] = made, {variant: choice}
    return found


_codecs = _by_name()
# MaxMin, Half, ...: codecs.pyi declares them for type checkers.
globals().update({made.__name__: made for made, _ in _codecs.values()})
__all__ = ["Codec", "make", "names", *sorted({made.__name__ for made, _ in _codecs.values()})]


def names() -> tuple[str, ...]:
    """Names that :func:`make` knows, sorted."""
    return tuple(sorted(_codecs))


def make(name: str, **params: Any) -> Codec:
    """The codec of that name, in any case: ``make("maxmin", bits=4)``, ``make("fp16")``. An unknown
    name is a ValueError."""
    if not isinstance(name, str) or name.lower() not in _codecs:
        raise ValueError(f"codec is {name!r}, allowed: {', '.join(names())}")
    made, said = _codecs[name.lower()]
    return made(**said, **params)
