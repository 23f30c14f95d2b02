"""The error of the command line."""

from __future__ import annotations


class CliError(Exception):
    """What a command cannot do, and what to do about it, in one line. status: of the exit."""

    def __init__(self, text: str, status: int = 1):
        super().__init__(text)
        self.status = status
