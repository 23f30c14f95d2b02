"""The engine's list of element types (csrc/base/dtype.h) as torch's dtypes."""

from __future__ import annotations

from typing import Any

import torch

from torch_cgx import _C

# By dtype: name, number in the engine, bytes of an element, whether it is floating, the real type
# of a complex one, whether codecs and reducers compute on it ("computed"), and its number in
# payloads of torch_cgx.bounded, 0 where these do not hold it. Types that this torch lacks are left
# out.
FACTS: dict[torch.dtype, dict[str, Any]] = {
    dtype: row for row in _C.DTYPES if (dtype := getattr(torch, row["name"], None)) is not None
}
# What codecs and reducers compute on, and its number in the engine.
COMPUTED: dict[torch.dtype, int] = {
    dtype: row["number"] for dtype, row in FACTS.items() if row["computed"]
}
