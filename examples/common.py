"""What the training examples share: arguments, process group, DDP with its hook, measurement, JSON.

Start an example with torchrun, mpirun or srun, or plainly for a single process:

    torchrun --nproc-per-node 2 examples/train_digits.py --backend cgx --bits 4
    mpirun -np 2 python examples/train_digits.py --backend cgx --bits 4
    python examples/train_digits.py --backend gloo
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import hashlib
import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

EXACT_BITS = 32


@dataclasses.dataclass(frozen=True)
class Ranks:
    """This process among all: its rank, the world size, and the device that its tensors live on."""

    rank: int
    world_size: int
    device: torch.device


def parser(description: str) -> argparse.ArgumentParser:
    """The arguments that every example takes. Parse with `parse`, which checks combinations too."""
    p = argparse.ArgumentParser(description=description.splitlines()[0])
    group = p.add_argument_group("communication")
    group.add_argument("--backend", default="gloo", help="cgx, gloo, or another that torch knows")
    group.add_argument(
        "--bits",
        type=int,
        choices=[*range(1, 9), 16, EXACT_BITS],
        help="bits per gradient value for cgx; 16 is bf16, 32 exact (default: 4 with cgx, else 32)",
    )
    group.add_argument(
        "--average-bits",
        type=float,
        metavar="BITS",
        help="bits of each layer in the bytes of so many for all (AdaptiveBits), for cgx",
    )
    group.add_argument(
        "--codec", choices=["maxmin", "rotated", "trellis"], default="maxmin", help="for cgx"
    )
    group.add_argument(
        "--error-feedback",
        action="store_true",
        help="add to each gradient what earlier steps left out of it, for cgx",
    )
    group.add_argument("--bucket-size", type=int, default=512, help="values per bucket, for cgx")
    group.add_argument(
        "--min-size",
        type=int,
        default=1024,
        help="smaller layers stay exact, for cgx",
    )
    group.add_argument(
        "--hook", choices=["none", "fp16"], default="none", help="DDP hook of the other backends"
    )
    group = p.add_argument_group("run")
    group.add_argument("--seed", type=int, default=0, help="of initial weights and data order")
    group.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    group.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    group.add_argument(
        "--watch",
        type=Path,
        metavar="FILE",
        help="show what compression does every 20 steps, and write a log for `cgx report`, for cgx",
    )
    group.add_argument("--no-progress", action="store_true", help="print the result only")
    return p


def parse(p: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    """Parses and checks; a bad value or combination exits with status 2 and names itself."""
    args = p.parse_args(argv)
    if args.average_bits is not None:
        if not uses_cgx(args) or args.bits is not None:
            p.error(f"--average-bits {args.average_bits:g} needs --backend cgx, without --bits")
        least = 2 if args.error_feedback and args.codec == "maxmin" else 1
        if not least <= args.average_bits <= 8:
            p.error(f"--average-bits {args.average_bits:g}: must be from {least} to 8")
    if not uses_cgx(args) and (args.codec != "maxmin" or args.error_feedback):
        p.error(f"--codec and --error-feedback need --backend cgx; this is {args.backend}")
    if args.watch is not None and not uses_cgx(args):
        p.error(f"--watch {args.watch} needs --backend cgx; this is {args.backend}")
    if args.bits is None:
        args.bits = 4 if uses_cgx(args) else EXACT_BITS
    if args.error_feedback and args.codec == "maxmin" and args.bits == 1:
        p.error("--error-feedback with --codec maxmin needs --bits 2 or more; rotated takes 1")
    if not uses_cgx(args) and args.bits != EXACT_BITS:
        p.error(f"--bits {args.bits} needs --backend cgx; {args.backend} sends all 32 bits")
    if uses_cgx(args) and args.hook != "none":
        p.error(f"--hook {args.hook} is for other backends; --backend cgx has its own hook")
    for name in ("bucket_size", "min_size", "steps", "epochs", "batch"):
        value = getattr(args, name, None)
        if value is not None and value < (0 if name == "min_size" else 1):
            p.error(f"--{name.replace('_', '-')} {value}: must be positive")
    return args


def uses_cgx(args: argparse.Namespace) -> bool:
    """Whether `--backend` is cgx, alone or for one device type (`cpu:gloo,cuda:cgx`)."""
    return any(part.rpartition(":")[2] == "cgx" for part in args.backend.split(","))


@contextlib.contextmanager
def process_group(args: argparse.Namespace) -> Iterator[Ranks]:
    """Makes the default process group, seeds all generators, and destroys the group at the end.

    Without a launcher (torchrun; with torch_cgx installed also mpirun and srun) the group has this
    one process. Keep no DDP model beyond the `with` body's last call: one that outlives the group
    keeps its threads alive, and a thread that runs a Python hook while the interpreter ends aborts
    the process (torch 2.13).
    """
    if uses_cgx(args):
        import torch_cgx  # noqa: F401  (the import registers the backend)
    launched = _launched()  # before LOCAL_RANK is read, which it may set
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    use_cuda = args.device == "cuda" or (args.device == "auto" and torch.cuda.is_available())
    device = torch.device("cuda", local_rank) if use_cuda else torch.device("cpu")
    if use_cuda:
        torch.cuda.set_device(device)
    if launched:
        dist.init_process_group(args.backend)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(args.backend, store=store, rank=0, world_size=1)
    try:
        random.seed(args.seed)
        torch.manual_seed(args.seed)
        yield Ranks(dist.get_rank(), dist.get_world_size(), device)
    finally:
        gc.collect()  # DDP models sit in reference cycles
        dist.destroy_process_group()


def _launched() -> bool:
    """Whether a launcher started this process; sets the variables of torchrun if it was another."""
    if "RANK" in os.environ:
        return True
    try:
        from torch_cgx import launch
    except ModuleNotFoundError as error:  # gloo needs no torch_cgx
        if error.name != "torch_cgx":
            raise
        return False
    if launch.find(os.environ) is None:
        return False
    launch.setup()
    return True


def data_parallel(
    model: nn.Module, args: argparse.Namespace, ranks: Ranks
) -> DistributedDataParallel:
    """Moves `model` to the device and wraps it in DDP, with the hook that the arguments ask for."""
    ids = [ranks.device.index] if ranks.device.type == "cuda" else None
    ddp = DistributedDataParallel(model.to(ranks.device), device_ids=ids)
    if uses_cgx(args):
        from cgx_utils import AdaptiveBits, CGXState, cgx_hook
        from cgx_utils.adaptive import CANDIDATES

        compression: dict[str, Any] = {"codec": args.codec, "bucket_size": args.bucket_size}
        adaptive = None
        if args.average_bits is None:
            compression["bits"] = args.bits
        else:
            # Error feedback needs more than 1 bit of maxmin.
            least = 2 if args.error_feedback and args.codec == "maxmin" else 1
            adaptive = AdaptiveBits(args.average_bits, [b for b in CANDIDATES if b >= least])
        state = CGXState(
            None,
            min_size=args.min_size,
            config=compression,
            adaptive=adaptive,
            error_feedback=args.error_feedback,
        )
        ddp.register_comm_hook(state, cgx_hook)
    elif args.hook == "fp16":
        ddp.register_comm_hook(None, fp16_compress_hook)
    return ddp


def batches(
    samples: int, batch: int, ranks: Ranks, seed: int, epoch: int
) -> Iterator[tuple[torch.Tensor, slice]]:
    """One epoch of shuffled batches: (int64 [batch] sample indices of the step, my slice of it).

    The order depends on seed and epoch alone, so runs with different backends or world sizes see
    the same global batches. The last, incomplete batch is dropped: ranks must take equal shares.
    Raises ValueError where `batch` is no multiple of the world size, or exceeds `samples`.
    """
    if batch % ranks.world_size != 0:
        raise ValueError(f"batch {batch} cannot be shared equally by {ranks.world_size} ranks")
    if batch > samples:
        raise ValueError(f"batch {batch} exceeds the {samples} training samples")
    share = batch // ranks.world_size
    mine = slice(ranks.rank * share, (ranks.rank + 1) * share)
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(samples, generator=generator)
    for start in range(0, samples - batch + 1, batch):
        yield order[start : start + batch], mine


def sum_over_ranks(values: list[float], ranks: Ranks) -> list[float]:
    """The sums of `values` over all ranks, on every rank; exact, as fp64 is never compressed."""
    total = torch.tensor(values, dtype=torch.float64, device=ranks.device)
    dist.all_reduce(total)
    return [float(v) for v in total.tolist()]


def require_equal_weights(model: nn.Module, ranks: Ranks) -> str:
    """The SHA-256 of all parameters, in hex; RuntimeError on every rank where ranks differ."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        raw = parameter.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest.update(raw.numpy().tobytes())
    mine = torch.tensor(list(digest.digest()), dtype=torch.uint8, device=ranks.device)
    everyone = [torch.empty_like(mine) for _ in range(ranks.world_size)]
    dist.all_gather(everyone, mine)
    different = [r for r, other in enumerate(everyone) if not torch.equal(other, everyone[0])]
    if different:
        raise RuntimeError(f"weights of ranks {different} differ from those of rank 0")
    return digest.hexdigest()


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes `content` so that a reader sees either all of it or the former file."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(content, indent=2) + "\n")
    part.replace(path)


def finish(args: argparse.Namespace, ranks: Ranks, result: dict[str, Any]) -> None:
    """On rank 0: prints a line that sums up `result`, and writes it to `--json`."""
    if ranks.rank != 0:
        return
    accuracy = result.get("accuracy")
    parts = [
        f"{result['example']}: backend {result['backend']}, {result['bits']} bits,",
        f"{result['world_size']} ranks, {result['steps']} steps:",
        f"train loss {result['final_train_loss']:.4f}, val loss {result['final_val_loss']:.4f},",
        f"accuracy {100 * accuracy:.2f} %," if accuracy is not None else "",
        f"{result['bytes_sent_per_step']:,.0f} bytes sent per step ({result['bytes_source']}),",
        f"{result['step_time_ms_median']:.1f} ms per step",
    ]
    print(" ".join(p for p in parts if p))
    sys.stdout.flush()
    if args.json is not None:
        write_json(args.json, result)
