"""Finds the command that an invocation names, and runs it."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import importlib
import os
import sys
from typing import Any, NoReturn, Protocol

from torch_cgx.cli.errors import CliError

# What each command is for. Its module, torch_cgx.cli.NAME, is imported when it is needed.
COMMANDS = {
    "doctor": "show what is installed here and what follows from it, and how to mend it",
    "bench": "time all-reduces by size, bits and codec, against gloo and NCCL",
    "advise": "predict a model's step time and error by setting, and recommend one",
    "simulate": "show what compression does to recorded gradients, layer by layer",
    "memory": "show what a model keeps for backward, and what would keep less",
    "activations": "fit the table of a few-bit activation function, and show it",
    "formats": "list the formats of numbers that can be emulated, and draw their errors",
    "emulate": "train a model in formats of low precision, and compare the losses",
    "report": "summarise the log of a training run",
    "link": "run a training script on hosts that slow links join, on this machine",
}

EXAMPLES = (
    ("cgx doctor", "does it work here?"),
    ("cgx bench --sizes 1M --bits 32,4", "is it faster between two ranks of this host?"),
    ("cgx advise --model train:make_model", "which bits for this model, on which link?"),
)


class Command(Protocol):
    """What a module of a command has."""

    EXAMPLES: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, args: argparse.Namespace) -> int: ...


class Parser(argparse.ArgumentParser):
    """Errors are one line, without the usage in front."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def print_help(self, file: Any = None) -> None:
        """argparse's own hides that the output cannot be written."""
        print(self.format_help(), end="", file=file)


def load(name: str) -> Any:
    """The module of a command."""
    return importlib.import_module(f"torch_cgx.cli.{name}")


def overview() -> str:
    """The text of `cgx --help`."""
    lines = ["usage: cgx COMMAND [ARGUMENT]...", ""]
    width = max(map(len, COMMANDS))
    lines += [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
    lines += ["", "examples:"]
    lines += [f"  {words:<38}  {what}" for words, what in EXAMPLES]
    return "\n".join([*lines, "", "cgx COMMAND --help shows arguments and examples.", ""])


def main(argv: list[str] | None = None) -> int:
    """Runs `cgx` with these arguments (None: of the process). Returns the exit status."""
    words = sys.argv[1:] if argv is None else list(argv)
    if len(words) == 2 and words[0] == "help":
        words = [words[1], "--help"]
    name = f"cgx {words[0]}" if words and words[0] in COMMANDS else "cgx"
    try:
        status = _run(words)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where an error still has a line and a status
        return status
    except CliError as error:
        print(f"{name}: {error}", file=sys.stderr, flush=True)
        if error.at_once:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
            os._exit(error.status)
        return error.status
    except ImportError as error:  # as of an extension for another torch
        reason = " ".join(str(error).split())
        print(f"{name}: {reason} (`cgx doctor` shows what is installed)", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # as of `cgx doctor | head`
        _drop_output()
        return 141
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EDQUOT):
            raise
        _drop_output()
        print(f"{name}: cannot write the output: {error.strerror}", file=sys.stderr)
        return 1


def _drop_output() -> None:
    """Nothing more is written on stdout, not when the interpreter ends either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview(), end="")
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        from torch_cgx import __version__

        print(f"torch_cgx {__version__}")
        return 0
    name = words[0]
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise CliError(f"unknown command {name!r}{hint} (commands: {', '.join(COMMANDS)})", 2)
    command: Command = load(name)
    parser = Parser(
        prog=f"cgx {name}",
        description=f"{COMMANDS[name][0].upper()}{COMMANDS[name][1:]}.",
        epilog=command.EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_arguments(parser)
    try:
        args = parser.parse_args(words[1:])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 2
    return command.run(args)
