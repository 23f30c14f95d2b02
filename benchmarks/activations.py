"""Activations: bytes kept for the backward pass, time of a training step, functions on their own.

    python -m benchmarks.activations [--quick] [--rounds N] [--json FILE] [--plot FILE]

Models: two layers of BERT's form (post-norm, dropout) and of Llama's (RMSNorm, SwiGLU), width 768,
sequence 128, with a linear head.

Bytes: `activations.memory` counts each storage that autograd keeps once. The input of the head is
left out, since the head keeps it with every method. compress_saved is counted by its payloads.
Dropout on the CPU keeps masks of the tensor's type, on a GPU of one byte a value: savings are
given for both. The peak of a step is measured: what torch allocates for the forward and the
backward pass and lives at once, gradients of the parameters included.

Steps: the forward and the backward pass of batch 8. In every round plain torch runs before and
after each method; the result is the median of the method's time, divided by the mean of these two.

Functions: the forward and the backward pass of 64 MiB of float32, by the time of torch's function.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import _activation_models as models
from benchmarks import _command
from benchmarks._activation_models import MODELS, Encoder
from benchmarks._command import at_least, quartiles
from torch_cgx import activations, codecs
from torch_cgx.activations import compress_saved, functional

Row = dict[str, Any]
FREE = {"norms": True, "dropout": True, "gates": True}
SEQUENCE = 128


BUCKET = 256
# By name: the arguments of `convert`, and the bits of compress_saved around the forward pass.
METHODS: dict[str, tuple[dict[str, Any], int | None]] = {
    "3-bit functions": ({"activations": 3}, None),
    "keep less": (FREE, None),
    "keep less, 3-bit functions": ({**FREE, "activations": 3}, None),
    "saved, 8 bits": ({}, 8),
    "saved, 4 bits": ({}, 4),
    "saved, 2 bits": ({}, 2),
    "all, saved 4 bits": ({**FREE, "activations": 3}, 4),
    "all, saved 2 bits": ({**FREE, "activations": 3}, 2),
}
TIMED = (
    "3-bit functions",
    "keep less",
    "keep less, 3-bit functions",
    "saved, 4 bits",
    "all, saved 4 bits",
)


def context_of(bits: int | None) -> Any:
    """A new context of a forward pass."""
    if bits is None:
        return contextlib.nullcontext()
    return compress_saved({"codec": "maxmin", "bits": bits, "bucket_size": BUCKET}, step=1)


def model_of(name: str, width: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return Encoder(MODELS[name], width=width).to(dtype)


def input_of(batch: int, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(batch, SEQUENCE, width).to(dtype)


def converted(model: nn.Module, options: dict[str, Any]) -> nn.Module:
    if options:
        activations.convert(model, **options)
    return model


# ---- bytes


def bytes_of(
    name: str, method: str | None, batch: int, width: int, dtype: torch.dtype
) -> tuple[int, int]:
    """What is kept, and the bytes of masks among it."""
    options, bits = METHODS[method] if method else ({}, None)
    model, x = converted(model_of(name, width, dtype), options), input_of(batch, width, dtype)
    report = activations.memory(model, x)
    masks = report.by_kind.get("mask", 0)
    inside = context_of(bits)
    with inside:
        model(x)
    # The input of the head has the size of x.
    if bits is None:
        return report.total - x.nbytes, masks
    codec = codecs.MaxMin(bits=bits, bucket_size=BUCKET)
    of_head = codec.encoded_bytes(x.numel(), dtype)
    return report.total - inside.bytes_saved + inside.bytes_kept - of_head, 0


class Within(nn.Module):
    """A model whose forward pass runs in a new context."""

    def __init__(self, model: nn.Module, bits: int | None) -> None:
        super().__init__()
        self.model, self.bits = model, bits

    def forward(self, x: Tensor) -> Tensor:
        with context_of(self.bits):
            y: Tensor = self.model(x)
        return y


def peak_of(name: str, method: str | None, batch: int, width: int, dtype: torch.dtype) -> int:
    """Bytes that a step has allocated at once."""
    options, bits = METHODS[method] if method else ({}, None)
    model = converted(model_of(name, width, dtype), options)
    return int(activations.memory(Within(model, bits), input_of(batch, width, dtype)).peak)


def measure_bytes(batches: tuple[int, ...], width: int) -> list[Row]:
    rows = []
    for name in MODELS:
        # Larger batches in fp32 only: products of bf16 take long on a CPU.
        sizes = [(torch.float32, batch) for batch in batches]
        for dtype, batch in [*sizes, (torch.bfloat16, batches[0])]:
            plain, masks = bytes_of(name, None, batch, width, dtype)
            plain_peak = peak_of(name, None, batch, width, dtype)
            size = dtype.itemsize
            as_bytes = plain - masks + masks // size
            for method in METHODS:
                kept, own = bytes_of(name, method, batch, width, dtype)
                rows.append(
                    {
                        "kind": "bytes",
                        "model": name,
                        "method": method,
                        "dtype": str(dtype).removeprefix("torch."),
                        "batch": batch,
                        "plain": plain,
                        "kept": kept,
                        "saving": 1 - kept / plain,
                        "factor": plain / kept,
                        "plain_peak": plain_peak,
                        "peak": peak_of(name, method, batch, width, dtype),
                        # With masks of a byte a value.
                        "plain_byte_masks": as_bytes,
                        "kept_byte_masks": kept - own + own // size,
                        "saving_byte_masks": 1 - (kept - own + own // size) / as_bytes,
                    }
                )
    return rows


# ---- time of a step


def step_of(model: nn.Module, x: Tensor, bits: int | None) -> Callable[[], float]:
    def step() -> float:
        begin = time.perf_counter()
        with context_of(bits):
            loss = model(x).square().mean()
        loss.backward()
        seconds = time.perf_counter() - begin
        model.zero_grad()
        return seconds

    return step


def measure_steps(rounds: int, threads: int, batch: int, width: int) -> list[Row]:
    torch.set_num_threads(threads)
    rows = []
    for name in MODELS:
        plain = step_of(model_of(name, width), input_of(batch, width), None)
        steps = {
            method: step_of(
                converted(model_of(name, width), METHODS[method][0]),
                input_of(batch, width),
                METHODS[method][1],
            )
            for method in TIMED
        }
        plain()
        for step in steps.values():
            step()
        ratios: dict[str, list[float]] = {method: [] for method in steps}
        seconds = []
        for _ in range(rounds):
            before = plain()
            for method, step in steps.items():
                # Plain torch before and after each, since the machine's speed drifts.
                mine, after = step(), plain()
                ratios[method].append(mine / ((before + after) / 2))
                seconds.append(after)
                before = after
        for method, found in ratios.items():
            low, median, high = quartiles(found)
            rows.append(
                {
                    "kind": "step",
                    "model": name,
                    "method": method,
                    "threads": threads,
                    "batch": batch,
                    "plain_seconds": statistics.median(seconds),
                    "ratio": median,
                    "ratio_q1": low,
                    "ratio_q3": high,
                }
            )
    return rows


# ---- functions


def _unary(name: str) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    theirs = getattr(torch, name) if name in ("sigmoid", "tanh") else getattr(F, name)
    ours = getattr(functional, name)
    if name == "threshold":
        return (lambda x: theirs(x, 0.5, 0.0)), (lambda x: ours(x, 0.5, 0.0))
    return theirs, ours


def functions() -> dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]]:
    """Torch's and ours, of one tensor of rows of models.WIDTH values. benchmarks/projections.py has
    linear."""
    others = {"dropout", "geglu", "layer_norm", "linear", "reglu", "rms_norm", "swiglu"}
    found = {name: _unary(name) for name in functional.__all__ if name not in others}
    weight, bias = (torch.ones(models.WIDTH, requires_grad=True) for _ in range(2))

    def halves(x: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = x.chunk(2, 0)
        return gate, up

    gates = {"swiglu": F.silu, "geglu": F.gelu, "reglu": F.relu}
    for name, function in gates.items():

        def theirs(x: Tensor, function: Callable[..., Tensor] = function) -> Tensor:
            gate, up = halves(x)
            return function(gate) * up

        ours = getattr(functional, name)
        found[name] = theirs, (lambda x, ours=ours: ours(*halves(x)))
    found["dropout"] = (lambda x: F.dropout(x, 0.1)), (lambda x: functional.dropout(x, 0.1))
    found["layer_norm"] = (
        (lambda x: F.layer_norm(x, (models.WIDTH,), weight, bias)),
        (lambda x: functional.layer_norm(x, (models.WIDTH,), weight, bias)),
    )
    found["rms_norm"] = (
        (lambda x: F.rms_norm(x, (models.WIDTH,), weight)),
        (lambda x: functional.rms_norm(x, (models.WIDTH,), weight)),
    )
    found["compress_saved, 4 bits (exp)"] = torch.exp, _saved_exp
    return found


def _saved_exp(x: Tensor) -> Tensor:
    with compress_saved(step=1):
        return torch.exp(x)


def measure_functions(rounds: int, nbytes: int, threads: int) -> list[Row]:
    torch.set_num_threads(threads)
    x = torch.randn(max(2, nbytes // 4 // models.WIDTH // 2 * 2), models.WIDTH).requires_grad_()
    rows = []
    for name, (theirs, ours) in functions().items():
        grad = torch.randn_like(theirs(x))
        times: list[tuple[float, float, float, float]] = []
        for _ in range(rounds + 1):
            line: list[float] = []
            for function in (theirs, ours):
                begin = time.perf_counter()
                y = function(x)
                between = time.perf_counter()
                y.backward(grad)
                line += [between - begin, time.perf_counter() - between]
                x.grad = None
                del y
            times.append((line[0], line[1], line[2], line[3]))
        times = times[1:]
        low, ratio, high = quartiles([(c + d) / (a + b) for a, b, c, d in times])
        rows.append(
            {
                "kind": "function",
                "function": name,
                "threads": threads,
                "bytes": x.nbytes,
                "torch_forward": statistics.median(a for a, *_ in times),
                "torch_backward": statistics.median(b for _, b, *_ in times),
                "forward": statistics.median(c for *_, c, _ in times),
                "backward": statistics.median(d for *_, d in times),
                "ratio": ratio,
                "ratio_q1": low,
                "ratio_q3": high,
            }
        )
    return rows


# ---- what is shown


def table(rows: list[Row]) -> str:
    lines = ["bytes kept, batch 8, fp32 and bf16: saving (with masks of bytes), factor"]
    least = min((row["batch"] for row in rows if row["kind"] == "bytes"), default=0)
    for row in rows:
        if row["kind"] == "bytes" and row["batch"] == least:
            lines.append(
                f"{row['model']:>6} {row['dtype']:>8} {row['method']:<28} "
                f"{row['saving']:>6.1%} ({row['saving_byte_masks']:>6.1%}) {row['factor']:>6.2f}x"
            )
    lines.append("time of a step, plain torch = 1")
    for row in rows:
        if row["kind"] == "step":
            lines.append(
                f"{row['model']:>6} {row['threads']} threads {row['method']:<28} "
                f"{row['ratio']:>6.3f} ({row['ratio_q1']:.3f} - {row['ratio_q3']:.3f}) of "
                f"{row['plain_seconds'] * 1e3:.0f} ms"
            )
    lines.append("functions, forward and backward, ms: torch's, ours; ratio")
    for row in rows:
        if row["kind"] == "function":
            cells = [row[key] * 1e3 for key in _TIMES]
            lines.append(
                f"{row['function']:<30} {row['threads']} threads "
                + " ".join(f"{cell:7.1f}" for cell in cells)
                + f"  {row['ratio']:.2f}"
            )
    return "\n".join(lines)


_TIMES = ("torch_forward", "torch_backward", "forward", "backward")


def draw(rows: list[Row], file: str) -> None:
    """Bytes by method, and the time of a step over the factor of bytes."""
    with _command.picture(file, 1, len(MODELS), figsize=(11, 4)) as (_, axes):
        for axis, name in zip(axes[0], MODELS, strict=True):
            some = [
                row
                for row in rows
                if row["kind"] == "bytes" and row["model"] == name and row["dtype"] == "float32"
            ]
            least = min(row["batch"] for row in some)
            some = [row for row in some if row["batch"] == least]
            labels = ["plain torch", *(row["method"] for row in some)]
            values = [some[0]["plain"] / 2**20, *(row["kept"] / 2**20 for row in some)]
            axis.barh(labels[::-1], values[::-1], color="#1f77b4")
            axis.set_xlabel(f"MiB kept for backward, two layers, batch {least}, fp32")
            axis.set_title(name)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small models, and two rounds")
    parser.add_argument("--rounds", type=at_least(1), metavar="N", help="7; 2 with --quick")
    _command.add_output_arguments(parser)
    args = parser.parse_args(argv)
    rounds = args.rounds or (2 if args.quick else 7)
    batches = (1,) if args.quick else (8, 32)
    nbytes = 1 << (18 if args.quick else 26)
    width = 192 if args.quick else models.WIDTH
    before = torch.get_num_threads()
    facts = _command.print_facts(rounds=rounds, width=width)
    rows = measure_bytes(batches, width)
    try:
        for threads in (1,) if args.quick else (1, 2):
            rows += measure_steps(rounds, threads, batches[0], width)
            rows += measure_functions(rounds, nbytes, threads)
    finally:
        torch.set_num_threads(before)
    print(table(rows))
    return _command.finish(args, {"machine": facts, "rows": rows}, lambda file: draw(rows, file))


if __name__ == "__main__":
    sys.exit(main())
