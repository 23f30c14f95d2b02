"""The command line: `cgx COMMAND`, or `python -m torch_cgx COMMAND`.

Each command is a module or a package of this one, has a line in
`torch_cgx.cli.main.COMMANDS`, and defines

    EXAMPLES: the end of its --help, command lines with what they do
    add_arguments(parser): declares its arguments
    run(args) -> int: runs it, and returns the exit status

A command that cannot do what it was asked for raises `CliError`: one line on stderr that says what
to do, and status 1. Wrong arguments end with status 2, as argparse has it.
"""

from __future__ import annotations

from torch_cgx.cli.errors import CliError
from torch_cgx.cli.main import main

__all__ = ["CliError", "main"]
