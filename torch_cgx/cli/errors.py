"""The error of the command line."""

from __future__ import annotations


class CliError(Exception):
    """What a command cannot do, and what to do about it, in one line."""
