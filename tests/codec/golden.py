"""Golden vectors of payloads: `python -m tests.codec.golden` adds to golden.json what it lacks.

What it has to have follows from the engine's list of families (`expected()`); bytes and values come
from the models in models.py, which know nothing of the engine. Vectors that are there stay: to
change one is a change of the wire format, after which ranks with different versions no longer
understand each other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.codec.helpers import TORCH, tensor_bytes
from tests.codec.models import MODELS, Key
from torch_cgx import _C, codecs

FILE = Path(__file__).with_name("golden.json")
# Ranges up to this length have vectors for each number.
SHORT = 16
# Parameters that came later, with their defaults: vectors leave them out where they have those.
LATER = {"exact_zeros": False}
Row = dict[str, Any]


def inputs() -> dict[str, dict[int, torch.Tensor]]:
    """Small inputs by name and dtype; no generator of random numbers."""
    ramp = (np.arange(37, dtype=np.float32) * np.float32(0.37)) - np.float32(5)
    special = np.array(
        [0, -0.0, 1e-45, -1e-40, 1e-38, 1, 1, 1, 1, np.nan, 2, 3, np.inf, 4, 5, 6], np.float32
    )
    wide = np.array([-3e38, 3e38, 1e38, 0, -1, 3.4028235e38, -3.4028235e38, 1e30], np.float32)
    half = np.array([-65504, 65504, 6e-8, -6e-5, 0, 1, 2, 3, np.inf, 7, np.nan, 9], np.float32)
    # Blocks of 256 and of 1024 values, and a rest.
    count = np.arange(1100, dtype=np.float64)
    long = (np.sin(count * count * 0.1) * np.exp(np.cos(count))).astype(np.float32)
    by_dtype = {
        "ramp": (ramp, tuple(TORCH)),
        "special": (special, tuple(TORCH)),
        "wide": (wide, (0, 2)),
        "half": (half, (1,)),
        "long": (long, (0, 2)),
    }
    return {
        name: {code: torch.from_numpy(x).to(TORCH[code]) for code in codes}
        for name, (x, codes) in by_dtype.items()
    }


def _borders(parameter: Mapping[str, Any]) -> list[Any]:
    """Values of a parameter that need vectors: choices, short ranges whole, ends of long ones."""
    if parameter["kind"] == "choice":
        return list(parameter["choices"])
    if parameter["kind"] == "boolean":
        return [False, True]
    assert parameter["kind"] == "integer", parameter
    low, high = parameter["low"], parameter["high"]
    if parameter["power_of_two"]:
        return [low, 2 * low, high]
    return list(range(low, high + 1)) if high - low < SHORT else [low, low + 1, high]


def _allowed(family: Mapping[str, Any], one: dict[str, Any]) -> bool:
    """Whether these parameters go together."""
    if family["name"] in ("float", "block"):
        try:
            codecs.make(family["name"], **one)
        except ValueError:
            return False
    return not (one.get("exact_zeros") and one["bits"] == 1)


def configurations(family: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The defaults, and every border of each parameter: beside the defaults of the others, and
    beside their last choices, since some parameters do nothing without a choice of another one (a
    seed without stochastic rounding)."""
    parameters = family["parameters"]
    defaults = {p["name"]: p["value"] for p in parameters}
    last = {
        p["name"]: p["value"] if p["kind"] == "integer" else _borders(p)[-1] for p in parameters
    }
    found = [defaults]
    for base in (defaults, last):
        for p in parameters:
            for value in _borders(p):
                one = {**base, p["name"]: value}
                if one not in found and _allowed(family, one):
                    found.append(one)
    return [{k: v for k, v in one.items() if LATER.get(k) != v or k not in LATER} for one in found]


def expected(families: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Of each family: the defaults on every input, all other configurations on a ramp of each
    dtype, and block sizes on the long input, too."""
    rows = []
    for family in families:
        for number, parameters in enumerate(configurations(family)):
            for name, tensors in inputs().items():
                blocks = name == "long" and parameters.get("block_size") == 256
                if number > 0 and name != "ramp" and not blocks:
                    continue
                rows += [
                    {
                        "input": name,
                        "dtype": code,
                        "family": family["name"],
                        "parameters": parameters,
                    }
                    for code in tensors
                ]
    return rows


def missing(families: Iterable[Mapping[str, Any]], rows: Iterable[Row]) -> list[Row]:
    """What `expected()` asks for and `rows` lack."""
    have = {_identity(row) for row in rows}
    return [row for row in expected(families) if _identity(row) not in have]


def _identity(row: Row) -> tuple[Any, ...]:
    return row["input"], row["dtype"], row["family"], json.dumps(row["parameters"])


def load() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def modelled(row: Row) -> tuple[bytes, bytes]:
    """Payload and values of a row by its family's model."""
    if row["family"] not in MODELS:
        raise SystemExit(
            f"family {row['family']!r} has no model: add an independent one to "
            "tests/codec/models.py, then run `python -m tests.codec.golden`"
        )
    return MODELS[row["family"]](inputs()[row["input"]][row["dtype"]], row["parameters"], Key())


def write() -> None:
    kept = load()["vectors"]
    added = missing(_C.families(), kept)
    for row in added:
        payload, values = modelled(row)
        row |= {"payload": payload.hex(), "values": values.hex()}
    hexes = {
        name: {code: tensor_bytes(x).tobytes().hex() for code, x in tensors.items()}
        for name, tensors in inputs().items()
    }
    rows = ",\n".join(json.dumps(row) for row in kept + added)
    FILE.write_text(f'{{"inputs": {json.dumps(hexes)},\n"vectors": [\n{rows}\n]}}\n')
    print(f"{len(kept)} vectors kept, {len(added)} added")


if __name__ == "__main__":
    write()
