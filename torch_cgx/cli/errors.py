"""The error of the command line."""

from __future__ import annotations


class CliError(Exception):
    """What a command cannot do, and what to do about it, in one line. status: of the exit. at_once:
    a thread is still inside torch; were it to come back while Python shuts down, the process would
    end with SIGABRT.
    """

    def __init__(self, text: str, status: int = 1, at_once: bool = False):
        super().__init__(text)
        self.status = status
        self.at_once = at_once
