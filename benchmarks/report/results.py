"""The results in the tree, and look-ups in them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from benchmarks._command import RESULTS

Row = dict[str, Any]


class Missing(Exception):
    """The results do not hold what a target needs; the text says what."""


class Results:
    """The documents in a folder, and look-ups in them. Missing where there is no such row."""

    def __init__(self, documents: dict[str, Any]):
        self._documents = documents
        self._looked_at: set[str] = set()

    def unread(self) -> Results:
        """The same documents; none has been looked at."""
        return Results(self._documents)

    def simd(self) -> str:
        """The SIMD level of the machines that the documents looked at so far were measured on."""
        machines = (self._documents[name].get("machine") for name in self._looked_at)
        return ", ".join(sorted({machine["simd"] for machine in machines if machine}))

    @staticmethod
    def in_tree() -> Results:
        return Results({f.stem: json.loads(f.read_text()) for f in sorted(RESULTS.glob("*.json"))})

    def of(self, name: str) -> Any:
        if name not in self._documents:
            raise Missing(f"no {name}.json")
        self._looked_at.add(name)
        return self._documents[name]

    def rows(self, name: str) -> list[Row]:
        return list(self.of(name)["rows"])

    def codec(self, name: str, document: str = "codec", level: str | None = None) -> Row:
        """By name, at the best SIMD level or this one; document: of benchmarks/codec.py."""
        level = level or self.of(document)["machine"]["levels"][-1]
        return one(
            (r for r in self.rows(document) if r["name"] == name and r["level"] == level),
            f"{document}.json has no {name!r}",
        )

    def reduced(self, method: str, nbytes: int) -> Row:
        return find(self.rows("allreduce"), method, nbytes, "allreduce.json")

    def hosts(self, hosts: int, rate: str, document: str = "hosts") -> list[Row]:
        """Of the run with one rank per host at that rate; document: of benchmarks/hosts.py."""
        run = one(
            (
                r
                for r in self.of(document)["runs"]
                if (r["hosts"], r["rate"], r["ranks_per_host"]) == (hosts, rate, 1)
            ),
            f"{document}.json has no run of {hosts} hosts at {rate}",
        )
        return list(run["rows"])


def one(found: Iterable[Row], otherwise: str) -> Row:
    """The first row found. Missing, with this text, if there is none."""
    for row in found:
        return row
    raise Missing(otherwise)


def find(rows: list[Row], method: str, nbytes: int, where: str) -> Row:
    """The row of a method at a size. where: the file that Missing names."""
    return one(
        (row for row in rows if row["method"] == method and row["bytes"] == nbytes),
        f"{where} has no {method!r} at {nbytes} bytes",
    )
