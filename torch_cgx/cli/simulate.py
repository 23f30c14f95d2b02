"""`cgx simulate`: what all-reducing recorded gradients would do to them, layer by layer."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch_cgx.cli.arguments import add_codec, add_min_size, at_least
from torch_cgx.cli.errors import CliError
from torch_cgx.cli.output import progress, size_text, table

EXAMPLES = """\
examples:
  cgx simulate gradients.pt --ranks 8
  cgx simulate gradients.pt --ranks 8 --hosts 2 --codec maxmin,rotated --bits 4,2 --json

FILE is what torch.save wrote of {name: gradient}, or of a list of such dicts, one for each rank:

  loss.backward()  # of the model without DistributedDataParallel, or inside its no_sync()
  torch.save({n: p.grad for n, p in model.named_parameters() if p.grad is not None}, "gradients.pt")

A tied gradient counts once, by its first name. Names are without "_orig_mod.", "module.".

From one dict all ranks get the same gradients. For most settings that is the best case: equal
gradients add up to the longest sum, the errors of "rotated" and "trellis" average out, and a second
rounding finds the sum on a level of "maxmin". Gradients of different batches cancel partly, their
errors do not. Only "maxmin" at few bits and in one round may err more on equal gradients, whose
errors are equal, too. Record a dict for each rank to see a training's errors.

Layers that CGXState keeps exact are marked so."""

BITS = (*range(1, 9), 16)
_MOST_RANKS = 1024
_MEMORY = 6  # fp32 copies of a layer that each rank takes: values, result, messages
Gradients = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="recorded gradients, see below")
    parser.add_argument("--ranks", type=at_least(1), metavar="N", help="default: as FILE has, or 2")
    parser.add_argument("--hosts", type=at_least(1), default=1, metavar="N", help="default: 1")
    add_codec(parser)
    parser.add_argument(
        "--bits", type=_bits, default=[8, 4, 2], metavar="BITS", help="default: 8,4,2"
    )
    add_min_size(parser)
    parser.add_argument("--json", action="store_true", help="write JSON")


def _bits(text: str) -> list[int]:
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        found = [0]
    if not set(found) <= set(BITS):
        raise argparse.ArgumentTypeError(f"bits {text!r}; allowed: 1 to 8 and 16, as 8,4")
    return list(dict.fromkeys(found))


def run(args: argparse.Namespace) -> int:
    ranks = load(args.file)
    number = args.ranks or max(2, len(ranks))
    if len(ranks) not in (1, number):
        raise CliError(f"{args.file} has gradients of {len(ranks)} ranks; --ranks is {number}")
    if args.hosts > number:
        raise CliError(f"--hosts {args.hosts} is more than {number} ranks")
    _check_room(number, ranks[0])
    each = ranks if len(ranks) > 1 else ranks * number
    hosts = [rank * args.hosts // number for rank in range(number)]
    configs = _configs(args.codec, args.bits)
    bar = progress(len(configs) * len(each[0]), "cgx simulate")
    columns = []
    for config in configs:
        columns.append(measure(each, hosts, config, args.min_size, bar.update))
    bar.close()
    if args.json:
        print(json.dumps({"ranks": number, "hosts": args.hosts, "settings": columns}, indent=1))
    else:
        same = ", with equal gradients" if len(ranks) == 1 else ""
        print(f"{number} ranks on {args.hosts} host{'s' * (args.hosts > 1)}{same}\n")
        print(text_of(each[0], columns))
    return 0


def _check_room(number: int, gradients: Gradients) -> None:
    """CliError for more ranks than this process can hold."""
    from torch_cgx.cli.output import free_memory

    if number > _MOST_RANKS:
        raise CliError(f"--ranks {number}; allowed: at most {_MOST_RANKS}")
    needed = _MEMORY * 4 * number * max(tensor.numel() for tensor in gradients.values())
    free = free_memory()
    if needed > free:
        raise CliError(
            f"--ranks {number} takes about {size_text(needed)}, and {size_text(free)} is free"
        )


def load(path: Path) -> list[Gradients]:
    """The gradients of one rank or of several, by name. CliError where the file is none of them."""
    import torch

    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror or error}") from None
    except Exception:
        raise CliError(
            f"{path} is no file of tensors that torch.load(weights_only=True) takes; allowed: "
            "torch.save({name: gradient, ...}, FILE)"
        ) from None
    ranks = found if isinstance(found, (list, tuple)) else [found]
    for rank, one in enumerate(ranks):
        where = f"{path}, rank {rank}" if len(ranks) > 1 else f"{path}"
        if not isinstance(one, Mapping) or not one:
            raise CliError(f"{where}: a {type(one).__name__}; allowed: {{name: gradient, ...}}")
        for name, tensor in one.items():
            if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
                raise CliError(f"{where}: {name!r} is no tensor of floating-point values")
            other = ranks[0].get(name)
            if other is None or other.shape != tensor.shape or len(one) != len(ranks[0]):
                raise CliError(f"{where}: names or shapes differ from those of rank 0, at {name!r}")
    if not ranks:
        raise CliError(f"{path}: an empty list; allowed: a dict of gradients for each rank")
    from torch_cgx._policy.names import once

    names = once(ranks[0])
    return [{shown: one[name] for name, shown in names.items()} for one in ranks]


def _configs(codecs: Sequence[str], bits: Sequence[int]) -> list[dict[str, Any]]:
    """Of each codec and number of bits that it has; 16 bits once."""
    from torch_cgx.cli.bench.methods import check_codecs, has

    check_codecs(codecs, bits)
    found: list[dict[str, Any]] = []
    for number in bits:
        if number == 16:
            found.append({"bits": 16})
        else:
            found += [{"codec": c, "bits": number} for c in codecs if has(c, number)]
    return found


def measure(
    ranks: Sequence[Gradients], hosts: list[int], config: dict[str, Any], least: int, update: Any
) -> dict[str, Any]:
    """One setting: relative L2 errors of the sums, by layer and of all, and bytes that rank 0
    sends.
    """
    import torch

    import torch_cgx
    from torch_cgx._policy.rules import Policy

    policy = Policy(least, config)
    errors: dict[str, float | None] = {}
    exact: list[str] = []
    off = norm = 0.0
    sent = 0
    for name, first in ranks[0].items():
        tensors = [one[name].detach().float().reshape(-1) for one in ranks]
        chosen = policy.config_of(name, torch.nn.Parameter(first, requires_grad=False))
        if chosen is None:
            exact.append(name)
        # As the reducers do it; other dtypes would be reduced exactly.
        found = torch_cgx.simulate(tensors, chosen or {"bits": 32}, hosts=hosts)
        error = found.error["relative_l2"]
        errors[name] = error if math.isfinite(error) else None
        square = float(torch.stack(tensors).double().sum(0).square().sum())
        if math.isfinite(error) and math.isfinite(square):
            off += error**2 * square
            norm += square
        sent += found.bytes_sent[0]
        update()
    return {
        **config,
        "errors": errors,
        "exact": exact,
        "error": (off / norm) ** 0.5 if norm else 0.0,
        "bytes_sent": sent,
    }


def text_of(gradients: Gradients, columns: Sequence[dict[str, Any]]) -> str:
    """Layers by settings."""
    head = ["layer", "values"]
    for one in columns:
        head.append(f"{one.get('codec', 'bf16')} {one['bits']}")
    rows = []
    for name, tensor in gradients.items():
        cells = [name, f"{tensor.numel()}"]
        for one in columns:
            error = one["errors"][name]
            shown = "not finite" if error is None else f"{error:.3g}"
            cells.append("exact" if name in one["exact"] else shown)
        rows.append(cells)
    values = sum(tensor.numel() for tensor in gradients.values())
    rows.append(["all", f"{values}", *(f"{one['error']:.3g}" for one in columns)])
    rows.append(["sent by rank 0", "", *(size_text(one["bytes_sent"]) for one in columns)])
    return table(head, rows)
