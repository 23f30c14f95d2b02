"""Simulates compressed collectives that move values, and messages, in one process."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from torch_cgx import _C, _feedback
from torch_cgx._config import codec_of, defaults, list_of
from torch_cgx._dtypes import COMPUTED
from torch_cgx._steps import check_step, key_of_simulated_call, key_of_simulated_message
from torch_cgx._storage import check_storage
from torch_cgx._threads import safe_after_fork


@dataclasses.dataclass(frozen=True)
class SimulatedMove:
    """The result of `simulate_broadcast`, `simulate_all_to_all` and `simulate_send`.

    outputs: what each rank gets (of a message: one tensor, its receiver's). error: "max_abs" and
    "relative_l2" of the outputs against what was sent, over all ranks. payload_bytes: by rank, the
    bytes of what it encodes, without headers (of a message: one number).
    """

    outputs: list[torch.Tensor]
    error: dict[str, float]
    payload_bytes: list[int]


@safe_after_fork
def simulate_broadcast(
    tensor: torch.Tensor,
    ranks: int,
    config: Any = None,
    src: int = 0,
    *,
    residual: torch.Tensor | None = None,
    sequence: int = 0,
    step: int | None = None,
) -> SimulatedMove:
    """`torch_cgx.broadcast` of rank `src` to a number of ranks; `tensor` is not changed.

    tensor: CPU, fp32, fp16 or bf16. config: as of the call; what it leaves open comes from the
    environment. residual: of the source, read and written (with fp16 and bf16 tensors a real call
    may round otherwise: docs/numerics.md). sequence: number of the call in its
    group, which keys random numbers; step: keys them instead, as in the first call of the step.
    """
    _check("tensor", tensor)
    _check_int("ranks", ranks, 1)
    _check_int("src", src, 0, ranks - 1)
    codec = _codec(config, ranks)
    key = _call_key(sequence, step, src)
    sent, size = _sent("simulate_broadcast", tensor, residual, codec, key)
    payloads = [0] * ranks
    payloads[src] = size
    outputs = [sent.clone().view(tensor.shape) for _ in range(ranks)]
    return SimulatedMove(outputs, _error([(tensor, sent)]), payloads)


@safe_after_fork
def simulate_all_to_all(
    inputs: Sequence[torch.Tensor],
    config: Any = None,
    input_split_sizes: Sequence[Sequence[int]] | None = None,
    *,
    residuals: Sequence[torch.Tensor] | None = None,
    sequence: int = 0,
    step: int | None = None,
) -> SimulatedMove:
    """`torch_cgx.all_to_all_single` of inputs[r] of rank r; the inputs are not changed.

    inputs: CPU, fp32, fp16 or bf16, of one dtype, of equal shape behind dimension 0.
    input_split_sizes: row r has the numbers of rows that rank r sends to each rank; None: equal
    pieces.
    residuals: residuals[r] of rank r, read and written. Other arguments as in `simulate_broadcast`.
    """
    inputs = list_of("inputs", inputs, "a list of one torch.Tensor per rank")
    ranks = len(inputs)
    for rank, tensor in enumerate(inputs):
        _check(f"inputs[{rank}]", tensor)
        first = inputs[0]
        if tensor.dim() == 0 or (tensor.shape[1:], tensor.dtype) != (first.shape[1:], first.dtype):
            raise ValueError(
                f"inputs[{rank}] is {tuple(tensor.shape)} {tensor.dtype}, but inputs[0] is "
                f"{tuple(first.shape)} {first.dtype}; allowed: rows of one shape and dtype"
            )
    if not inputs:
        raise ValueError("inputs is empty; allowed: one tensor per rank, at least one")
    splits = _splits(inputs, input_split_sizes)
    owed = [None] * ranks if residuals is None else list_of("residuals", residuals, "a list, None")
    if len(owed) != ranks:
        raise ValueError(f"residuals has {len(owed)} tensors; allowed: {ranks}")
    codec = _codec(config, ranks)
    rows: list[list[torch.Tensor]] = []
    payloads = []
    for rank, tensor in enumerate(inputs):
        key = _call_key(sequence, step, rank)
        flat, size = _pieces(tensor, splits[rank], rank, owed[rank], codec, key)
        rows.append(list(flat))
        payloads.append(size)
    outputs = [torch.cat([rows[r][p] for r in range(ranks)]) for p in range(ranks)]
    sent = [torch.cat([i.split(s)[p] for i, s in zip(inputs, splits, strict=True)])
            for p in range(ranks)]  # fmt: skip
    return SimulatedMove(outputs, _error(list(zip(sent, outputs, strict=True))), payloads)


@safe_after_fork
def simulate_send(
    tensor: torch.Tensor,
    config: Any = None,
    *,
    residual: torch.Tensor | None = None,
    rank: int = 0,
    sequence: int = 0,
    step: int | None = None,
) -> SimulatedMove:
    """`torch_cgx.send` by a rank; `tensor` is not changed.

    rank, sequence: the sender's in its group, and how many messages it has sent there before; both
    key random numbers. Other arguments as in `simulate_broadcast`.
    """
    _check("tensor", tensor)
    _check_int("rank", rank, 0, 2**31 - 1)
    _check_int("sequence", sequence, 0)
    check_step(step)
    key = (*key_of_simulated_message(sequence, step), rank)
    sent, size = _sent("simulate_send", tensor, residual, _codec(config, 2), key)
    return SimulatedMove([sent.view(tensor.shape)], _error([(tensor, sent)]), [size])


Key = tuple[int, int, int]


def _call_key(sequence: int, step: int | None, rank: int) -> Key:
    _check_int("sequence", sequence, 0)
    check_step(step)
    return (*key_of_simulated_call(sequence, step), rank)


def _codec(config: Any, ranks: int) -> _C.Codec | None:
    codec = None if config is None else codec_of(config, defaults())
    return codec if ranks > 1 else None


def _sent(
    what: str,
    tensor: torch.Tensor,
    residual: torch.Tensor | None,
    codec: _C.Codec | None,
    key: Key,
) -> tuple[torch.Tensor, int]:
    """The values as receivers get them, of one dimension; bytes of the payload."""
    flat, owed = tensor.detach().reshape(-1), None
    if residual is not None:
        _feedback.check(what, residual, tensor, codec)
        owed = residual.view(-1)
    (piece,), size = _pieces(flat, [tensor.numel()], None, owed, codec, key)
    return piece, size


def _pieces(
    tensor: torch.Tensor,
    splits: Sequence[int],
    own: int | None,
    residual: torch.Tensor | None,
    codec: _C.Codec | None,
    key: Key,
) -> tuple[list[torch.Tensor], int]:
    """The pieces of a rank's tensor as their receivers get them, and the bytes of its payloads.
    own: the piece that is exact.
    """
    with torch.no_grad():
        values = tensor.detach().contiguous()
        feedback = None
        if residual is not None:
            _feedback.check("a simulated call", residual, tensor, codec)
            feedback = _feedback.Sent(values, residual)
            values = feedback.values.view(tensor.shape)
        pieces, size, place_of_first = [], 0, 0
        sequence, number, rank = key
        for place, piece in enumerate(values.split(list(splits))):
            index = place_of_first  # counts the random numbers of the whole input
            place_of_first += piece.numel()
            if codec is None or place == own or piece.numel() == 0:
                pieces.append(piece.clone())
                continue
            size += codec.encoded_bytes(piece.numel(), piece.dtype)
            pieces.append(codec.roundtrip(piece.contiguous(), sequence, rank, index, None, number))
        if feedback is not None:
            feedback.keep(pieces)
    return pieces, size


def _splits(inputs: list[torch.Tensor], given: Sequence[Sequence[int]] | None) -> list[list[int]]:
    ranks = len(inputs)
    if given is None:
        for rank, tensor in enumerate(inputs):
            if len(tensor) % ranks:
                raise ValueError(
                    f"inputs[{rank}] has {len(tensor)} rows; allowed without input_split_sizes: a "
                    f"multiple of {ranks}, the number of ranks"
                )
        return [[len(tensor) // ranks] * ranks for tensor in inputs]
    splits = [list(sizes) for sizes in given]
    if len(splits) != ranks:
        raise ValueError(f"input_split_sizes has {len(splits)} lists; allowed: {ranks}")
    for rank, (sizes, tensor) in enumerate(zip(splits, inputs, strict=True)):
        for size in sizes:
            _check_int(f"input_split_sizes[{rank}]", size, 0)
        if len(sizes) != ranks or sum(sizes) != len(tensor):
            raise ValueError(
                f"input_split_sizes[{rank}]={sizes}; allowed: a number of rows for each of {ranks} "
                f"ranks, {len(tensor)} in all"
            )
    return splits


def _check(name: str, tensor: Any) -> None:
    """TypeError, ValueError."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is of type {type(tensor).__name__}; allowed: torch.Tensor")
    if tensor.is_nested or tensor.layout != torch.strided:
        layout = "nested" if tensor.is_nested else tensor.layout
        raise TypeError(f"{name} has the layout {layout}; allowed: torch.strided")
    check_storage(tensor, f"cannot be {name}")
    if tensor.device.type != "cpu":
        raise ValueError(f"{name} is on {tensor.device}; allowed: cpu")
    if tensor.dtype not in COMPUTED:
        raise TypeError(f"{name} is {tensor.dtype}; allowed: {', '.join(map(str, COMPUTED))}")


def _check_int(name: str, value: Any, low: int, high: int = 2**63 - 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r} is not an integer; allowed: {low} to {high}")
    if not low <= value <= high:
        raise ValueError(f"{name}={value}; allowed: {low} to {high}")


def _error(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, float]:
    """Of (sent, received), in float64."""
    largest, square, norm = 0.0, 0.0, 0.0
    for sent, received in pairs:
        if sent.numel() == 0:
            continue
        exact = sent.detach().double().reshape(-1)
        difference = received.double().reshape(-1) - exact
        largest = max(largest, difference.abs().max().item())
        square += difference.square().sum().item()
        norm += exact.square().sum().item()
    relative = (square / norm) ** 0.5 if norm > 0 else (0.0 if square == 0 else float("inf"))
    return {"max_abs": largest, "relative_l2": relative}
