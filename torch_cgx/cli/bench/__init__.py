"""`cgx bench`: times all-reduces by size, bits and codec, against gloo and NCCL."""

from __future__ import annotations

import argparse
import os
import socket
from pathlib import Path

from torch_cgx.cli.arguments import add_codec, at_least, size
from torch_cgx.cli.errors import CliError

EXAMPLES = """\
examples:
  cgx bench                                     two ranks of this host
  cgx bench --ranks 4 --sizes 64K-64M --bits 32,8,4
  cgx bench --codec maxmin,rotated --bits 4,2 --plot bench.png --csv bench.csv
  cgx bench --hosts a,b --interface eth0        a rank on each host, started by ssh
  torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint a:29400 \\
      --no-python cgx bench                     the ranks that are there; also mpirun, srun

time: of one all-reduce of the slowest rank, median [10th to 90th percentile]. algbw: bytes of the
tensor by time. busbw: algbw * 2 (N - 1) / N, as in nccl-tests; both in GB/s of uncompressed fp32.
sent: bytes that the rank which sends most sends; ~: by formula. error: relative L2 error of the sum
of Gaussian values. vs gloo: how many times as fast as gloo fp32, measured in turns."""

DEFAULT_SIZES = "4K-64M"
BITS = (*range(1, 9), 16, 32)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ranks", type=at_least(1), metavar="N", help="start N ranks on this host (default: 2)"
    )
    parser.add_argument(
        "--hosts", type=_hosts, metavar="HOST[:N],...", help="start N ranks (1) on each, by --rsh"
    )
    parser.add_argument(
        "--rsh",
        default="ssh -o BatchMode=yes",
        metavar="COMMAND",
        help="runs a command on a host (default: ssh -o BatchMode=yes)",
    )
    parser.add_argument(
        "--address",
        metavar="ADDRESS",
        help="of this host, at which the ranks of --hosts meet (default: by the route to each)",
    )
    parser.add_argument(
        "--python", metavar="FILE", help="interpreter on the hosts (default: the path of this one)"
    )
    parser.add_argument(
        "--interface", metavar="NAME", help="network interface to use, on all hosts"
    )
    parser.add_argument(
        "--sizes",
        type=sizes,
        default=sizes(DEFAULT_SIZES),
        metavar="SIZES",
        help=f"bytes of fp32, as 64K,1M or, in steps of four, 4K-1G (default: {DEFAULT_SIZES})",
    )
    parser.add_argument(
        "--bits",
        type=_bits,
        default=[32, 16, 8, 4, 2],
        metavar="BITS",
        help="per value; 32 is exact (default: 32,16,8,4,2)",
    )
    add_codec(parser)
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cpu", help="of the tensors (default: cpu)"
    )
    parser.add_argument(
        "--repeats",
        type=at_least(1),
        default=7,
        metavar="N",
        help="of each method and size (default: 7)",
    )
    parser.add_argument(
        "--timeout",
        type=at_least(1),
        default=60,
        metavar="SECONDS",
        help="of every wait (default: 60)",
    )
    for name, what in (("json", "rows and facts"), ("csv", "rows"), ("plot", "a picture")):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"write {what}")


def sizes(text: str) -> list[int]:
    """Bytes: of a list with commas, or of a range FIRST-LAST in steps of four."""
    if text.startswith("-") or text.endswith("-"):
        raise argparse.ArgumentTypeError(f"sizes {text!r}; allowed: as 64K,1M or 4K-1G")
    first, dash, last = text.partition("-")
    if not dash:
        return sorted({size(word) for word in text.split(",")})
    low, high = size(first), size(last)
    if low > high:
        raise argparse.ArgumentTypeError(f"sizes {text!r}: {first} is above {last}")
    found = [low]
    while found[-1] * 4 <= high:
        found.append(found[-1] * 4)
    return found


def _bits(text: str) -> list[int]:
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        found = [0]
    if not set(found) <= set(BITS):
        raise argparse.ArgumentTypeError(f"bits {text!r}; allowed: 1 to 8, 16, 32, as 32,8,4")
    return list(dict.fromkeys(found))


def _hosts(text: str) -> list[tuple[str, int]]:
    found = []
    for word in text.split(","):
        host, _, number = word.partition(":")
        if not host or host.startswith("-") or (number and not number.isdigit()) or number == "0":
            raise argparse.ArgumentTypeError(f"hosts {text!r}; allowed: HOST or HOST:RANKS, ...")
        found.append((host, int(number or 1)))
    return found


def run(args: argparse.Namespace) -> int:
    from torch_cgx.cli.bench import rank, start
    from torch_cgx.cli.meeting import launched

    if os.environ.get(start.PARENT):
        start.end_with_parent(os.environ[start.PARENT])
    if os.environ.get(start.LIFELINE):
        start.end_with_connection()
    # With --hosts it is the hosts' ranks that need the interface, not this process.
    if args.interface and not args.hosts:
        _use_interface(args.interface)
    if launched(os.environ):
        if args.hosts or args.ranks:
            raise CliError("a launcher has started the ranks: leave out --ranks and --hosts")
        return rank.run(args)
    if args.address and not args.hosts:
        raise CliError("--address is where the ranks of --hosts meet: give --hosts, too")
    _check_codecs(args)
    for path in (args.json, args.csv, args.plot):
        if path is not None:
            _check_writable(path)
    return start.run(args)


def _use_interface(name: str) -> None:
    from torch_cgx.launch import _network as net

    up = sorted({one.interface for one in net.addresses()})
    if name not in up:
        raise CliError(
            f"--interface {name}: {socket.gethostname()} has no such interface that is up and has "
            f"an address; it has {', '.join(up) or 'none'}"
        )
    os.environ["GLOO_SOCKET_IFNAME"] = name


def _check_codecs(args: argparse.Namespace) -> None:
    from torch_cgx.cli.bench.methods import check_codecs

    check_codecs(args.codec, args.bits)


def _check_writable(path: Path) -> None:
    new = not path.exists()
    try:
        with path.open("a"):
            pass
        if new:
            path.unlink()
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}") from None
