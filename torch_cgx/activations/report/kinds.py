"""What a tensor that is kept for backward is for: the kinds of `activations.memory`.

The kind of a tensor follows from the first of these that holds:

1. A checkpoint keeps it: "checkpoint boundary".
2. It is a copy of a parameter in another type or layout: "cast of parameter".
3. The name of the node that keeps it says it, as GeluBackward0 does: "activation".
4. It is one of two factors that both need a gradient: "gate"; in a module of a norm: "norm".
5. It is a factor that needs no gradient, of the product's shape: "mask", as of a dropout.
6. Its type says it: integers are an "index", booleans a "mask".
7. The class of the module that was running says it, as LayerNorm does: "norm".
8. Otherwise: "other".

A storage that several nodes keep has the kind of the node that saved it first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import torch

from torch_cgx.activations.report.saves import Save, Stored

LINEAR = "input of linear"
ATTENTION = "attention"
ACTIVATION = "activation"
NORM = "norm"
MASK = "mask"
INDEX = "index"
GATE = "gate"
CHECKPOINT = "checkpoint boundary"
CAST = "cast of parameter"
OTHER = "other"
KINDS = (LINEAR, ATTENTION, ACTIVATION, NORM, MASK, INDEX, GATE, CHECKPOINT, CAST, OTHER)

# Nodes of functions whose derivative takes two values, and of those whose takes many.
STEP_NODES = frozenset(
    "Hardshrink Hardsigmoid Hardtanh LeakyRelu Relu Softshrink Threshold".split()
)
SMOOTH_NODES = frozenset(
    "Celu Elu Gelu Hardswish LogSigmoid Mish Sigmoid Silu Softplus Tanh".split()
)
ACTIVATION_CLASSES = frozenset(
    set(torch.nn.modules.activation.__all__)
    - {"GLU", "MultiheadAttention", "Softmin", "Softmax", "Softmax2d", "LogSoftmax"}
)

_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)
# The first pattern that the node's name matches, without its "Backward0".
_BY_NODE = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"CheckpointFunction|_NoopSaveInputs", CHECKPOINT),
        (r".*(Attention|Sdpa|Sdp)", ATTENTION),
        (r"(Safe)?Softmax|MaskedSoftmax", ATTENTION),
        (r"_FewBit", ACTIVATION),  # this and the next three: our own functions
        (r"_Gated", GATE),
        (r"_Projected", LINEAR),
        (r"_(Replay|Bits)$", MASK),
        (r"(Native|Fused|Cudnn|Miopen|Mkldnn)?_?(Batch|Layer|Group|Instance|Rms|RMS)_?Norm", NORM),
        (r"(Native|Fused)?Dropout|MaskedFill|MaskedScatter", MASK),
        (r"(Embedding|Index|Gather|Scatter|TakeAlongDim|Take|Sort|Topk|Kthvalue)", INDEX),
        (r"(Prelu|PreluKernel|Rrelu.*)$", ACTIVATION),
        (r"Glu$", GATE),
    )
)
_PRODUCT = re.compile(r"(Badd|Add|Sparse\w*)?(b?mm|mv)$|Dot$|(\w+_)?Linear|\w*Convolution", re.I)
_BY_CLASS = (
    (re.compile(r"norm", re.IGNORECASE), NORM),
    (re.compile(r"dropout", re.IGNORECASE), MASK),
    (re.compile(r"attention", re.IGNORECASE), ATTENTION),
    (re.compile(r".*Activation$"), ACTIVATION),
    (re.compile(r"(.*Linear|(Lazy)?Conv(Transpose)?\dd)$"), LINEAR),
    (re.compile(r"Embedding"), INDEX),
)


def name_kinds(stored: Iterable[Stored]) -> None:
    """Sets `kind` of every save."""
    saves = list(dict.fromkeys(save for one in stored for save in one.saves))
    of_node: dict[int, list[Save]] = {}
    for save in saves:
        of_node.setdefault(save.sequence, []).append(save)
    for save in saves:
        save.kind = kind_of(save, of_node[save.sequence])


def operation(save: Save) -> str:
    """The node's name without its ending, as Gelu of GeluBackward0."""
    return re.sub(r"Backward\d*$", "", save.node.rpartition("::")[2])


def is_gate(saves: Sequence[Save]) -> bool:
    """Whether a node that keeps these multiplies two tensors that both need a gradient."""
    factors = [one for one in saves if one.requires_grad and not one.cast]
    return (
        len(factors) == 2
        and factors[0].storage != factors[1].storage  # as in a square
        and all(operation(one) == "Mul" for one in factors)
    )


def kind_of(save: Save, saves: Sequence[Save]) -> str:
    """saves: all that the same node keeps, without the model's own tensors."""
    if save.boundary:
        return CHECKPOINT
    if save.cast:
        return CAST
    name = operation(save)
    if name == "Where" or save.dtype == torch.bool:
        return MASK
    kind = next((kind for pattern, kind in _BY_NODE if pattern.match(name)), None)
    if kind == INDEX and save.dtype not in _INTEGERS:
        kind = None  # as of the values that a product with gathered ones keeps
    if kind is None and name in STEP_NODES | SMOOTH_NODES:
        kind = ACTIVATION
    if kind is not None:
        return kind
    if _PRODUCT.match(name):
        activations = [one for one in saves if not one.cast and one.requires_grad]
        return ATTENTION if len(activations) > 1 and "Conv" not in name else LINEAR
    clue = _of_class(save.cls)
    if clue not in (NORM, ACTIVATION):
        if is_gate(saves):
            return GATE
        factor = name == "Mul" and not save.requires_grad
        if factor and (
            "dropout" in save.function or (save.size == save.shape and len(save.size) > 0)
        ):
            return MASK
    if save.dtype in _INTEGERS:
        return INDEX
    return clue or OTHER


def _of_class(cls: str) -> str | None:
    if cls in ACTIVATION_CLASSES:
        return ACTIVATION
    return next((kind for pattern, kind in _BY_CLASS if pattern.search(cls)), None)
