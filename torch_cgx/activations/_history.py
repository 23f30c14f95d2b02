"""Walks back over nodes of autograd that only view or copy a tensor."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

VIEWS = frozenset(
    f"{name}Backward0"
    for name in (
        *("Alias", "AsStrided", "Expand", "Permute", "ReshapeAlias", "Select", "Slice", "Split"),
        *("SplitWithSizes", "Squeeze", "T", "Transpose", "UnsafeView", "Unsqueeze", "View"),
    )
) | {"SqueezeBackward1"}
COPIES = frozenset({"ToCopyBackward0", "CloneBackward0"})


def behind(node: Any, names: Collection[str]) -> Any:
    """The first node from this one on that has another name than these; None: there is none."""
    while node is not None and node.name() in names:
        node = node.next_functions[0][0]
    return node
