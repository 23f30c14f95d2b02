"""What was asked of the speed, and what the results in the tree say.

    python -m benchmarks targets

Reads benchmarks/results/*.json; a row whose results are not there says so. Every figure is a ratio
of medians or a median of ratios within one run.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks import _accuracy
from benchmarks._command import RESULTS
from benchmarks.hosts import payload_bytes

Row = dict[str, Any]
MIB64 = 64 << 20


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

    def codec(self, name: str) -> Row:
        """By name, at the best SIMD level."""
        best = self.of("codec")["machine"]["levels"][-1]
        return _one(
            (r for r in self.rows("codec") if r["name"] == name and r["level"] == best),
            f"codec.json has no {name!r}",
        )

    def reduced(self, method: str, nbytes: int) -> Row:
        return _find(self.rows("allreduce"), method, nbytes, "allreduce.json")

    def hosts(self, hosts: int, rate: str) -> list[Row]:
        """Of the run with one rank per host at that rate."""
        run = _one(
            (
                r
                for r in self.of("hosts")["runs"]
                if (r["hosts"], r["rate"], r["ranks_per_host"]) == (hosts, rate, 1)
            ),
            f"hosts.json has no run of {hosts} hosts at {rate}",
        )
        return list(run["rows"])


def _one(found: Iterable[Row], otherwise: str) -> Row:
    for row in found:
        return row
    raise Missing(otherwise)


def _find(rows: list[Row], method: str, nbytes: int, where: str) -> Row:
    return _one(
        (row for row in rows if row["method"] == method and row["bytes"] == nbytes),
        f"{where} has no {method!r} at {nbytes} bytes",
    )


@dataclass(frozen=True)
class Target:
    """`figure` is compared with `asked`: at least it, or at most with `at_most`. pattern: how a
    figure is shown."""

    what: str
    against: str
    asked: float
    figure: Callable[[Results], float]
    at_most: bool = False
    unit: str = ""

    def row(self, results: Results) -> list[str]:
        """The cells of the table's line; the last one is the SIMD level of the machine."""
        asked = f"{'<=' if self.at_most else '>='} {self.asked:g}{self.unit}"
        results = results.unread()
        try:
            figure = self.figure(results)
        except Missing as why:
            return [self.what, self.against, asked, f"not measured: {why}", "", ""]
        # As it is shown: 0.951 of 0.95 must not look met at "0.95" and fail, nor the other way.
        shown = float(f"{figure:.3g}")
        met = shown <= self.asked if self.at_most else shown >= self.asked
        said = "yes" if met else "**no**"
        return [self.what, self.against, asked, f"{shown:g}{self.unit}", said, results.simd()]


def _lowest_encode(r: Results) -> float:
    return min(r.codec(f"encode fp32 {b} nearest")["of_roof"] for b in range(1, 9))


def _even_encode(r: Results) -> float:
    rates = [r.codec(f"encode fp32 {b} nearest")["gb_per_s"] for b in range(1, 9)]
    return float(min(rates) / max(rates))


def _lowest_add(r: Results) -> float:
    return min(r.codec(f"decode+add {b}")["of_roof"] for b in range(1, 9))


def _lowest_l2(r: Results) -> float:
    best = r.of("codec")["machine"]["levels"][-1]
    found = [
        row["of_roof"]
        for row in r.rows("codec")
        if row["level"] == best
        and row["of_roof"]
        and row["name"].startswith("encode fp32")
        and "nearest" in row["name"]
        and row["name"].endswith("256 KiB")
    ]
    if not found:
        raise Missing("codec.json has no encoding from L2")
    return float(min(found))


def _stochastic(r: Results) -> float:
    return min(
        r.codec(f"encode fp32 {b} stochastic")["gb_per_s"]
        / r.codec(f"encode fp32 {b} nearest")["gb_per_s"]
        for b in range(1, 9)
    )


def _sixteen_bit_input(r: Results) -> float:
    """Values per second: a 16-bit value is half as many bytes."""
    return min(
        2
        * r.codec(f"encode {dtype} {b} nearest")["gb_per_s"]
        / r.codec(f"encode fp32 {b} nearest")["gb_per_s"]
        for dtype in ("fp16", "bf16")
        for b in (4, 8)
    )


def _python_face(end: str) -> Callable[[Results], float]:
    """The slowest row "Python" over the engine's own; end: of its name."""

    def figure(r: Results) -> float:
        names = (
            f"{what}{end}"
            for b in (4, 8)
            for what in (f"encode fp32 {b} nearest", f"decode {b}", f"decode+add {b}")
        )
        return float(min(r.codec(f"Python {name}")["of_roof"] for name in names))

    return figure


def _rotation(name: str, what: str, widths: Iterable[int]) -> Callable[[Results], float]:
    """The slowest row of a codec with a rotation over its roof; what: "encode" or "decode+add"."""
    return lambda r: float(min(r.codec(f"{what} {name} {b}")["of_roof"] for b in widths))


# Largest squared error relative to the squared norm, by bits; bits per value, metadata included.
ERRORS = {
    "rotated": {1: 0.37, 2: 0.121, 3: 0.0355, 4: 0.0098},
    "trellis": {1: 0.33, 2: 0.092, 3: 0.0258, 4: 0.0068},
}


def _error_rows(r: Results, name: str, data: str) -> list[Row]:
    rows = r.rows("errors")
    return [
        _one(
            (row for row in rows if (row["data"], row["codec"], row["bits"]) == (data, name, bits)),
            f"errors.json has no {name} at {bits} bits on {data}",
        )
        for bits in ERRORS[name]
    ]


def _error(name: str, data: str) -> Callable[[Results], float]:
    """Of the worst width, as a share of its target; of gradients the worst step and dtype."""
    return lambda r: float(
        max(row["worst"] / ERRORS[name][row["bits"]] for row in _error_rows(r, name, data))
    )


def _metadata(name: str) -> Callable[[Results], float]:
    return lambda r: float(
        max(row["bits_per_value"] - row["bits"] for row in _error_rows(r, name, "Gaussian"))
    )


def _speedup(method: str, nbytes: int = MIB64) -> Callable[[Results], float]:
    return lambda r: float(r.reduced(method, nbytes)["speedup"])


def _deepspeed(r: Results) -> float:
    exact = r.reduced("cgx shm exact", MIB64)["seconds"]
    return float(r.reduced("DeepSpeed shm", MIB64)["seconds"] / exact)


def _latency(r: Results) -> float:
    return 1 / float(r.reduced("cgx shm exact", 16 << 10)["speedup"])


def _between(hosts: int, rate: str, bits: int, nbytes: int = MIB64) -> Callable[[Results], float]:
    def figure(r: Results) -> float:
        rows = r.hosts(hosts, rate)
        return float(_find(rows, f"cgx {bits} bit", nbytes, "hosts.json")["speedup"])

    return figure


def _rotated_between(name: str, bits: int) -> Callable[[Results], float]:
    def figure(r: Results) -> float:
        rows = r.hosts(2, "1gbit")
        return float(_find(rows, f"cgx {bits} bit {name}", MIB64, "hosts.json")["speedup"])

    return figure


def _rotated_like_maxmin(r: Results) -> float:
    rows = r.hosts(2, "1gbit")
    rotated, maxmin = (
        _find(rows, f"cgx 4 bit{name}", MIB64, "hosts.json") for name in (" rotated", "")
    )
    return float(maxmin["seconds"] / rotated["seconds"])


def _against_fp16(hosts: int, bits: int) -> Callable[[Results], float]:
    def figure(r: Results) -> float:
        rows = r.hosts(hosts, "1gbit")
        fp16, cgx = (_find(rows, m, MIB64, "hosts.json") for m in ("fp16 hook", f"cgx {bits} bit"))
        return float(fp16["seconds"] / cgx["seconds"])

    return figure


def _sixteen_bits(communicator: str) -> Callable[[Results], float]:
    """Against the faster of torch's two hooks of 16 bits."""

    def figure(r: Results) -> float:
        hooks = min(r.reduced(f"{name} hook", MIB64)["seconds"] for name in ("fp16", "bf16"))
        return float(hooks / r.reduced(f"cgx {communicator} 16 bit", MIB64)["seconds"])

    return figure


def _worst_between(r: Results) -> float:
    rows = [row for row in r.hosts(2, "1gbit") if row["method"] == "cgx 4 bit"]
    return float(min(row["speedup"] for row in rows))


def _autotuned(r: Results) -> list[float]:
    return [row["of_best"] for run in r.of("autotune")["runs"] for row in run["rows"]]


def _exact(r: Results) -> list[float]:
    runs = r.of("exact")["runs"]
    return [row["speedup"] for run in runs for row in run["rows"] if row["method"] == "cgx exact"]


def _passthrough(r: Results) -> float:
    return float(min(row["ratio"] for row in r.rows("passthrough")))


def _passthrough_median(r: Results) -> float:
    return float(statistics.median(row["ratio"] for row in r.rows("passthrough")))


def _adaptive(held: bool) -> Callable[[Results], float]:
    """The largest ratio of adaptive to uniform squared errors; held: of steps after the measured
    one.
    """

    def figure(r: Results) -> float:
        rows = r.rows("adaptive")
        return float(
            max(row["ratio"] for row in rows if (row["step"] != row["measured_step"]) == held)
        )

    return figure


SEGMENT = 512 << 10  # the default of segment_kb


def _staging(r: Results) -> float:
    """What messages hold over what they may: three encoded tensors and two segments a peer."""
    shares = []
    for run in r.of("hosts")["runs"]:
        if run["ranks_per_host"] != 1:
            continue
        for bits in (2, 4, 8):
            row = _find(run["rows"], f"cgx {bits} bit", MIB64, "hosts.json")
            if "staging_bytes" not in row:
                raise Missing("hosts.json has no staging_bytes")
            allowed = 3 * payload_bytes(bits, MIB64, 512) + 2 * SEGMENT * (run["hosts"] - 1)
            shares.append(row["staging_bytes"] / allowed)
    return float(max(shares))


def _training(method: str) -> Callable[[Results], float]:
    def figure(r: Results) -> float:
        rows = r.of("hosts_training")["groups"][0]["rows"]
        row = _one((row for row in rows if row["method"] == method), f"no {method!r}")
        if "ratio" not in row:
            raise Missing("hosts_training.json has no model")
        return float(row["ratio"])

    return figure


def _sharded_loss(r: Results) -> float:
    """By how many percent the loss is above fp32's: the mean of all seeds."""
    row = _one((row for row in r.rows("fsdp") if row["bits"] == [4, 8]), "no 4 and 8 bits")
    if len(row["val_losses"]) < 3:
        raise Missing("fsdp.json has less than 3 seeds")
    return float(row["percent_over_base"])


def _diloco_loss(r: Results) -> float:
    """The loss at equal time over that of DDP over gloo."""
    base, *_, diloco = r.rows("diloco")
    return float(diloco["loss"] / base["loss"])


def _harm(example: str, bits: int, feedback: bool) -> Callable[[Results], float]:
    """How much worse than exact `rotated` trains: points of accuracy (digits), % of loss (gpt)."""

    def figure(r: Results) -> float:
        row = _accuracy.row_of(r.of(f"accuracy_{example}"), "rotated", bits, feedback)
        if row is None:
            raise Missing(f"accuracy_{example}.json has no rotated at {bits} bits")
        if len(row["seeds"]) < 3:
            raise Missing(f"accuracy_{example}.json has less than 3 seeds")
        return _accuracy.harm(row)

    return figure


def _harm_of_noise(example: str) -> Callable[[Results], float]:
    """Of 4 bits, as a share of the standard deviation of the exact runs' seeds."""
    harm = _harm(example, 4, False)
    return lambda r: abs(harm(r)) / _accuracy.noise(r.of(f"accuracy_{example}"))


def _trained(example: str, unit: str, two: float, one: float) -> list[Target]:
    exact = "exact training"
    what = f"{example}, `rotated`"
    return [
        Target(f"{what} 4 bits", "noise of fp32's seeds", 1, _harm_of_noise(example), True),
        *(
            Target(f"{what} {bits} bits with error feedback", exact, most, figure, True, f" {unit}")
            for bits, most in ((2, two), (1, one))
            for figure in [_harm(example, bits, True)]
        ),
    ]


def _hosts(hosts: int) -> list[Target]:
    what = f"{hosts} hosts at 1 Gbit/s, 64 MiB"
    gloo = "gloo fp32"
    return [
        Target(f"{what}, 4 bits", gloo, 7.2, _between(hosts, "1gbit", 4), unit="x"),
        Target(f"{what}, 8 bits", gloo, 3.7, _between(hosts, "1gbit", 8), unit="x"),
        Target(f"{what}, 2 bits", gloo, 12, _between(hosts, "1gbit", 2), unit="x"),
        Target(f"{what}, 4 bits", "gloo + fp16 hook", 3.6, _against_fp16(hosts, 4), unit="x"),
        Target(f"{what}, 16 bits", "gloo + fp16 hook", 1, _against_fp16(hosts, 16), unit="x"),
    ]


TARGETS = [
    Target("encode fp32, 64 MiB, slowest of 1-8 bits", "min-max scan", 0.7, _lowest_encode),
    Target("the same, slowest width", "fastest width", 0.8, _even_encode),
    Target("decode and add, 64 MiB, slowest of 1-8 bits", "`y += x`", 0.8, _lowest_add),
    Target("encode fp32, 256 KiB in L2, slowest", "min-max scan in L2", 0.45, _lowest_l2),
    Target("stochastic rounding, 64 MiB, slowest", "nearest", 0.6, _stochastic),
    Target("fp16 and bf16 input, values/s, slowest", "fp32 input", 1.0, _sixteen_bit_input),
    Target("`codecs` from Python, 64 MiB, slowest", "the engine", 0.9, _python_face("")),
    Target("the same, 256 KiB in L2", "the engine", 0.7, _python_face(", 256 KiB")),
    *(
        Target(
            f"`{name}`, squared error on {data}, worst of its widths", against, most, figure, True
        )
        for name in ERRORS
        for data, against, most, figure in (
            ("Gaussian", "its targets", 1.0, _error(name, "Gaussian")),
            ("gpt", "the same", 1.1, _error(name, "gpt")),
            ("resnet", "the same", 1.1, _error(name, "resnet")),
        )
    ),
    *(
        Target(f"`{name}`, metadata", "bits per value", 0.04, _metadata(name), True)
        for name in ERRORS
    ),
    *(
        Target(f"`{name}` {what}, {where}, slowest", roof, least, _rotation(name, what, widths))
        for name, what, where, widths, roof, least in (
            ("rotated", "encode", "1-8 bits", range(1, 9), "min-max scan", 0.18),
            ("rotated", "decode+add", "1-8 bits", range(1, 9), "`y += x`", 0.14),
            ("trellis", "encode", "1-2 bits", (1, 2), "min-max scan", 0.06),
            ("trellis", "encode", "3-4 bits", (3, 4), "min-max scan", 0.04),
            ("trellis", "decode+add", "1-4 bits", range(1, 5), "`y += x`", 0.12),
        )
    ),
    Target(
        "exact over SHM, 2 ranks, 64 MiB", "gloo fp32", 3.5, _speedup("cgx shm exact"), unit="x"
    ),
    Target("exact over SHM, 2 ranks, 64 MiB", "DeepSpeed's SHM op", 1.0, _deepspeed, unit="x"),
    Target("exact over SHM, 2 ranks, 16 KiB, time", "gloo fp32", 0.15, _latency, True, "x"),
    Target("4 bits over SHM, 2 ranks, 64 MiB", "gloo fp32", 3, _speedup("cgx shm 4 bit"), unit="x"),
    *(
        Target(f"16 bits over {where}, 2 ranks, 64 MiB", "gloo + 16-bit hook", 1, figure, unit="x")
        for where, figure in (("SHM", _sixteen_bits("shm")), ("Gloo", _sixteen_bits("gloo")))
    ),
    *_hosts(2),
    *(
        Target(
            f"2 hosts at 1 Gbit/s, 64 MiB, `{name}` {bits} bits",
            "gloo fp32",
            least,
            _rotated_between(name, bits),
            unit="x",
        )
        for name, bits, least in (("rotated", 2, 13), ("rotated", 1, 18), ("trellis", 2, 10))
    ),
    Target("the same, `rotated` 4 bits", "`maxmin`", 0.95, _rotated_like_maxmin, unit="x"),
    *_hosts(4),
    Target(
        "2 hosts at 10 Gbit/s, 64 MiB, 4 bits", "gloo fp32", 3, _between(2, "10gbit", 4), unit="x"
    ),
    Target(
        "2 hosts at 1 Gbit/s, 64 KiB, 4 bits",
        "gloo fp32",
        1.5,
        _between(2, "1gbit", 4, 64 << 10),
        unit="x",
    ),
    Target("the same, slowest of all sizes", "gloo fp32", 0.95, _worst_between, unit="x"),
    Target(
        "exact over Gloo, 1 to 4 hosts, 4 B to 64 MiB, slowest",
        "gloo fp32",
        0.95,
        lambda r: min(_exact(r)),
        unit="x",
    ),
    Target("the same, median", "gloo fp32", 0.95, lambda r: statistics.median(_exact(r)), unit="x"),
    Target(
        "autotuned, 4 bits asked for, 1 KiB to 64 MiB, slowest",
        "the best choice",
        0.95,
        lambda r: min(_autotuned(r)),
        unit="x",
    ),
    Target(
        "the same, median",
        "the best choice",
        0.95,
        lambda r: statistics.median(_autotuned(r)),
        unit="x",
    ),
    Target("collectives through cgx, slowest", "gloo alone", 0.97, _passthrough, unit="x"),
    Target("the same, median of all", "gloo alone", 0.97, _passthrough_median, unit="x"),
    Target(
        "training step, 2 hosts at 200 Mbit/s, 4 bits",
        "compute and wire, overlapped",
        1.15,
        _training("cgx, 4 bits"),
        True,
        "x",
    ),
    Target(
        "adaptive bits, error^2 at equal bytes, worst", "uniform bits", 0.85, _adaptive(False), True
    ),
    Target("the same, when the decision ends", "uniform bits", 0.85, _adaptive(True), True),
    *_trained("digits", "points", 0.5, 1.5),
    *_trained("gpt", "%", 1, 3),
    Target(
        "FSDP2, GPT, 4-bit gradients, 8-bit weights, loss above",
        "fp32, mean of 3 seeds",
        0.5,
        _sharded_loss,
        True,
        " %",
    ),
    Target(
        "DiLoCo, 4 bits, 2 hosts at 50 Mbit/s, loss at equal time",
        "DDP over gloo",
        1,
        _diloco_loss,
        True,
        "x",
    ),
    Target(
        "memory of messages between hosts, 64 MiB",
        "3 encoded tensors + 2 segments a peer",
        1,
        _staging,
        True,
        "x",
    ),
]


def table(results: Results | None = None) -> str:
    """As Markdown."""
    results = results or Results.in_tree()
    lines = ["| what | against | asked | measured | met | on |", "|---|---|---|---|---|---|"]
    lines += ["| " + " | ".join(target.row(results)) + " |" for target in TARGETS]
    return "\n".join(re.sub(r" +\|", " |", line) for line in lines) + "\n"
