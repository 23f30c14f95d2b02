"""`cgx advise`: predicts step time and error of a model by setting, and recommends a CGXState."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from torch_cgx.cli.arguments import add_min_size, at_least, rate
from torch_cgx.cli.errors import CliError

EXAMPLES = """\
examples:
  cgx advise --model train:make_model                 on links of 100 Mbit/s, 1 and 10 Gbit/s
  cgx advise --model train:make_model --link 1gbit --hosts 4 --ranks-per-host 2
  cgx advise --checkpoint model.pt --compute-ms 120   from sizes and a time of computing
  torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint a:29400 \\
      --no-python cgx advise --model train:make_model --measure

MODULE:FACTORY names a function without arguments that returns a module, or (module, step), where
step() makes the forward pass of a batch and returns the loss. With a step, computing is timed and
errors are those of its gradients; without, times of communication alone are predicted, unless
--compute-ms says what a step takes without it, and errors are those of Gaussian values.

The computation is measured on this machine, at its present load, with the threads that torch has
here (OMP_NUM_THREADS). The optimizer is not in it: add it by --compute-ms."""

LINKS = (1e8, 1e9, 1e10)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--model", metavar="MODULE:FACTORY", help="a function that returns the model (see below)"
    )
    source.add_argument("--checkpoint", type=Path, metavar="FILE", help="a state dict")
    link = parser.add_mutually_exclusive_group()
    link.add_argument("--link", type=rate, metavar="RATE", help="of a host, as 1gbit")
    link.add_argument("--measure", action="store_true", help="the link between the hosts' ranks")
    parser.add_argument("--hosts", type=at_least(2), metavar="N", help="number of hosts: 2")
    parser.add_argument(
        "--ranks-per-host", type=at_least(1), metavar="N", help="ranks of each host: 1"
    )
    parser.add_argument(
        "--compute-ms",
        type=_positive,
        metavar="MS",
        help="milliseconds of a step without communication",
    )
    parser.add_argument(
        "--max-error",
        type=_positive,
        default=0.25,
        metavar="E",
        help="relative error of the averaged gradient that is acceptable: 0.25",
    )
    add_min_size(parser)
    parser.add_argument(
        "--busy-cores", action="store_true", help="computing keeps all cores of a host busy"
    )
    parser.add_argument("--json", action="store_true", help="write JSON")


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: numbers above 0")
    return value


def run(args: argparse.Namespace) -> int:
    from torch_cgx.cli.advise import choose, link, show, source

    rank, measured = 0, None
    hosts, ranks_per_host = args.hosts or 2, args.ranks_per_host or 1
    if args.measure:
        if args.hosts or args.ranks_per_host:
            raise CliError("--measure counts hosts and ranks itself: leave out --hosts")
        rank, measured = link.measure()
        hosts, ranks_per_host = measured.hosts, measured.ranks_per_host
    if rank != 0:
        return 0
    found = source.load(args.model, args.checkpoint, os.getcwd())
    profile = source.profile(found, args.compute_ms)
    links = [measured.bits_per_second] if measured else [args.link] if args.link else [*LINKS]
    latency = measured.latency if measured else None
    place = choose.Place(hosts, ranks_per_host, latency, args.busy_cores)
    settings = choose.settings(profile, place, args.min_size)
    tables = []
    for bits_per_second in links:
        rows = choose.rows(profile, place, settings, bits_per_second)
        verdict = choose.verdict(rows, args.max_error, profile, args.min_size)
        tables.append({"link": bits_per_second, "rows": rows, **verdict})
    document: dict[str, Any] = {
        "parameters": sum(layer.numel for layer in profile.layers),
        "layers": len(profile.layers),
        "buckets": [sum(layer.nbytes for layer in bucket) for bucket in profile.buckets],
        "compute_seconds": profile.compute_seconds,
        "compute_source": profile.compute_source,
        "error_source": profile.error_source,
        "hosts": hosts,
        "ranks_per_host": ranks_per_host,
        "links": tables,
    }
    print(json.dumps(document, indent=1) if args.json else show.text_of(document))
    return 0
