"""Nodes of autograd: their numbers, and walks back over those that only view or copy a tensor."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

VIEWS = frozenset(
    f"{name}Backward0"
    for name in (
        *("Alias", "AsStrided", "Expand", "Permute", "ReshapeAlias", "Select", "Slice", "Split"),
        *("SplitWithSizes", "Squeeze", "T", "Transpose", "UnsafeView", "Unsqueeze", "View"),
    )
) | {"SqueezeBackward1"}
COPIES = frozenset({"ToCopyBackward0", "CloneBackward0"})


def next_node() -> int:
    """The number that the next node on this thread gets. A node takes its number before it saves,
    so the number of the node that is saving is next_node() - 1.
    """
    return int(torch._C._autograd._get_sequence_nr())


def behind(node: Any, names: Collection[str]) -> Any:
    """Goes from `node` along first inputs to a node whose name is not in `names`, and returns it;
    None if the history ends before.
    """
    while node is not None and node.name() in names:
        node = node.next_functions[0][0]
    return node
