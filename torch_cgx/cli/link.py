"""`cgx link SCRIPT`: a training script on hosts of this machine, with slow links between them."""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from torch_cgx.cli.arguments import at_least
from torch_cgx.cli.errors import CliError
from torch_cgx.cli.output import size_text

EXAMPLES = """\
examples:
  cgx link train.py                            on two hosts with a rank each, at 1 Gbit/s
  cgx link --rate 200mbit --ranks 2 train.py --epochs 1
  cgx link --hosts 4 --rate 10gbit -m package.train

Hosts are network namespaces: this needs Linux, root, iproute2 and util-linux. They share the cores
of this machine, so a step computes for longer than on machines of their own. A rate limits each
host's link in both directions; latency stays what it is here."""

_POLL_SECONDS = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hosts", type=at_least(1), default=2, metavar="N", help="hosts (2)")
    parser.add_argument("--ranks", type=at_least(1), default=1, metavar="N", help="a host (1)")
    parser.add_argument(
        "--rate", type=_rate, default="1gbit", help="of each host's link, as 200mbit (1gbit)"
    )
    parser.add_argument(
        "--timeout",
        type=at_least(1),
        default=24 * 3600,
        metavar="SECONDS",
        help="ends a run that takes longer (a day)",
    )
    # Both take all that follows: it is the script's.
    parser.add_argument(
        "-m",
        dest="module",
        nargs=argparse.REMAINDER,
        metavar="MODULE [ARGUMENT]...",
        help="a module in place of a script",
    )
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT [ARGUMENT]...",
        help="the file that torchrun starts on every host",
    )


def _rate(text: str) -> str:
    from torch_cgx.testbed.network import parse_rate

    try:
        parse_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def run(args: argparse.Namespace) -> int:
    from torch_cgx.testbed.bed import BedError, HostsFailed, hosts, hosts_available

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if args.module is not None:
        command = ["-m", *args.module]
    if command in ([], ["-m"]):
        allowed = "cgx link [OPTIONS] SCRIPT [ARGUMENT]..., or -m MODULE [ARGUMENT]..."
        raise CliError(f"no script; allowed: {allowed}", status=2)
    if command[0] != "-m" and not Path(command[0]).is_file():
        raise CliError(f"there is no file {command[0]}")
    if reason := hosts_available():
        raise CliError(f"there can be no hosts here: {reason}")
    try:
        with hosts(args.hosts, args.rate) as bed:
            with _shown(bed.folder):
                _, traffic = bed.traffic_of(
                    lambda: bed.torchrun(
                        [sys.executable, *command], args.ranks, timeout=args.timeout, grace=30
                    )
                )
    except HostsFailed as error:
        how = f"not done after {args.timeout} s" if error.timed_out else "failed"
        fates = ", ".join(f"host {i}: {fate}" for i, fate in enumerate(error.fates))
        raise CliError(f"{' '.join(command)}: {how} ({fates})") from None
    except (BedError, ValueError) as error:
        raise CliError(str(error)) from None
    for host, one in enumerate(traffic):
        sent, received = size_text(one.sent_bytes), size_text(one.received_bytes)
        print(f"host {host}: sent {sent}, received {received}, at {args.rate}")
    return 0


@contextlib.contextmanager
def _shown(folder: Path) -> Iterator[None]:
    """While it is open, lines that the hosts' torchruns write into `folder` are printed."""
    done = threading.Event()
    read: dict[Path, int] = {}

    def show() -> None:
        last = done.is_set()
        for log in sorted(folder.glob("run*/host*.log")):
            with log.open("rb") as file:
                file.seek(read.get(log, 0))
                new = file.read()
            if not last:
                # Not the last line without its end: the rest of it comes later.
                new = new[: new.rfind(b"\n") + 1]
            read[log] = read.get(log, 0) + len(new)
            for line in new.decode(errors="replace").splitlines():
                print(f"{log.stem}: {line}", flush=True)

    def follow() -> None:
        while not done.wait(_POLL_SECONDS):
            show()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        show()
