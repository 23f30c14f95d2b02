"""The figures that targets are compared with; each is computed from the results.

A figure is a ratio of medians or a median of ratios within one run; `Missing` where the results do
not hold what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from benchmarks.hosts import payload_bytes
from benchmarks.report import accuracy
from benchmarks.report.results import Missing, Results, Row, find, one

MIB64 = 64 << 20


def lowest_encode(r: Results, document: str = "codec") -> float:
    return min(r.codec(f"encode fp32 {b} nearest", document)["of_roof"] for b in range(1, 9))


def even_encode(r: Results) -> float:
    rates = [r.codec(f"encode fp32 {b} nearest")["gb_per_s"] for b in range(1, 9)]
    return float(min(rates) / max(rates))


def lowest_add(r: Results) -> float:
    return min(r.codec(f"decode+add {b}")["of_roof"] for b in range(1, 9))


def lowest_l2(r: Results) -> float:
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


def stochastic(r: Results) -> float:
    return min(
        r.codec(f"encode fp32 {b} stochastic")["gb_per_s"]
        / r.codec(f"encode fp32 {b} nearest")["gb_per_s"]
        for b in range(1, 9)
    )


def sixteen_bit_input(r: Results) -> float:
    """Values per second: a 16-bit value is half as many bytes."""
    return min(
        2
        * r.codec(f"encode {dtype} {b} nearest")["gb_per_s"]
        / r.codec(f"encode fp32 {b} nearest")["gb_per_s"]
        for dtype in ("fp16", "bf16")
        for b in (4, 8)
    )


def _calls(end: str) -> list[str]:
    """The engine's rows that have a row "Python"; end: of their names."""
    return [
        f"{what}{end}"
        for b in (4, 8)
        for what in (f"encode fp32 {b} nearest", f"decode {b}", f"decode+add {b}")
    ]


def python_face(end: str) -> Callable[[Results], float]:
    """The slowest row "Python" over the engine's own; end: of its name."""
    return lambda r: float(min(r.codec(f"Python {name}")["of_roof"] for name in _calls(end)))


def python_call(r: Results) -> float:
    """Microseconds that a call on 1 KiB takes above the engine's own, at worst."""

    def microseconds(name: str) -> float:
        return float(1.024 / r.codec(name)["gb_per_s"])

    short = _calls(", 1 KiB")
    return max(microseconds(f"Python {name}") - microseconds(name) for name in short)


def roundtrip(name: str) -> Callable[[Results], float]:
    """The slowest roundtrip of values in memory over encoding and decoding; name: of the row."""
    return lambda r: float(min(r.codec(f"Python {name} {b}")["of_roof"] for b in (4, 8)))


def rotation(name: str, what: str, widths: Iterable[int]) -> Callable[[Results], float]:
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
        one(
            (row for row in rows if (row["data"], row["codec"], row["bits"]) == (data, name, bits)),
            f"errors.json has no {name} at {bits} bits on {data}",
        )
        for bits in ERRORS[name]
    ]


def error(name: str, data: str) -> Callable[[Results], float]:
    """Of the worst width, as a share of its target; of gradients the worst step and dtype."""
    return lambda r: float(
        max(row["worst"] / ERRORS[name][row["bits"]] for row in _error_rows(r, name, data))
    )


def metadata(name: str) -> Callable[[Results], float]:
    return lambda r: float(
        max(row["bits_per_value"] - row["bits"] for row in _error_rows(r, name, "Gaussian"))
    )


def speedup(method: str, nbytes: int = MIB64) -> Callable[[Results], float]:
    return lambda r: float(r.reduced(method, nbytes)["speedup"])


def deepspeed(r: Results) -> float:
    exact = r.reduced("cgx shm exact", MIB64)["seconds"]
    return float(r.reduced("DeepSpeed shm", MIB64)["seconds"] / exact)


def latency(r: Results) -> float:
    return 1 / float(r.reduced("cgx shm exact", 16 << 10)["speedup"])


def between(hosts: int, rate: str, bits: int, nbytes: int = MIB64) -> Callable[[Results], float]:
    def figure(r: Results) -> float:
        rows = r.hosts(hosts, rate)
        return float(find(rows, f"cgx {bits} bit", nbytes, "hosts.json")["speedup"])

    return figure


def rotated_between(name: str, bits: int, document: str = "hosts") -> Callable[[Results], float]:
    def figure(r: Results) -> float:
        rows = r.hosts(2, "1gbit", document)
        return float(find(rows, f"cgx {bits} bit {name}", MIB64, f"{document}.json")["speedup"])

    return figure


def rotated_like_maxmin(r: Results) -> float:
    rows = r.hosts(2, "1gbit")
    rotated, maxmin = (
        find(rows, f"cgx 4 bit{name}", MIB64, "hosts.json") for name in (" rotated", "")
    )
    return float(maxmin["seconds"] / rotated["seconds"])


def against_fp16(hosts: int, bits: int) -> Callable[[Results], float]:
    def figure(r: Results) -> float:
        rows = r.hosts(hosts, "1gbit")
        fp16, cgx = (find(rows, m, MIB64, "hosts.json") for m in ("fp16 hook", f"cgx {bits} bit"))
        return float(fp16["seconds"] / cgx["seconds"])

    return figure


def sixteen_bits(communicator: str) -> Callable[[Results], float]:
    """Against the faster of torch's two hooks of 16 bits."""

    def figure(r: Results) -> float:
        hooks = min(r.reduced(f"{name} hook", MIB64)["seconds"] for name in ("fp16", "bf16"))
        return float(hooks / r.reduced(f"cgx {communicator} 16 bit", MIB64)["seconds"])

    return figure


def worst_between(r: Results) -> float:
    rows = [row for row in r.hosts(2, "1gbit") if row["method"] == "cgx 4 bit"]
    return float(min(row["speedup"] for row in rows))


def autotuned(r: Results) -> list[float]:
    return [row["of_best"] for run in r.of("autotune")["runs"] for row in run["rows"]]


def exact(r: Results) -> list[float]:
    runs = r.of("exact")["runs"]
    return [row["speedup"] for run in runs for row in run["rows"] if row["method"] == "cgx exact"]


def adaptive(held: bool) -> Callable[[Results], float]:
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


def staging(r: Results) -> float:
    """What messages hold over what they may: three encoded tensors and two segments a peer."""
    shares = []
    for run in r.of("hosts")["runs"]:
        if run["ranks_per_host"] != 1:
            continue
        for bits in (2, 4, 8):
            row = find(run["rows"], f"cgx {bits} bit", MIB64, "hosts.json")
            if "staging_bytes" not in row:
                raise Missing("hosts.json has no staging_bytes")
            allowed = 3 * payload_bytes(bits, MIB64, 512) + 2 * SEGMENT * (run["hosts"] - 1)
            shares.append(row["staging_bytes"] / allowed)
    return float(max(shares))


def training(method: str) -> Callable[[Results], float]:
    def figure(r: Results) -> float:
        rows = r.of("hosts_training")["groups"][0]["rows"]
        row = one((row for row in rows if row["method"] == method), f"no {method!r}")
        if "ratio" not in row:
            raise Missing("hosts_training.json has no model")
        return float(row["ratio"])

    return figure


def sharded_loss(r: Results) -> float:
    """By how many percent the loss is above fp32's: the mean of all seeds."""
    row = one((row for row in r.rows("fsdp") if row["bits"] == [4, 8]), "no 4 and 8 bits")
    if len(row["val_losses"]) < 3:
        raise Missing("fsdp.json has less than 3 seeds")
    return float(row["percent_over_base"])


def diloco_loss(r: Results) -> float:
    """The loss at equal time over that of DDP over gloo."""
    base, *_, diloco = r.rows("diloco")
    return float(diloco["loss"] / base["loss"])


def harm(example: str, bits: int, feedback: bool) -> Callable[[Results], float]:
    """How much worse than exact `rotated` trains: points of accuracy (digits), % of loss (gpt)."""

    def figure(r: Results) -> float:
        row = accuracy.row_of(r.of(f"accuracy_{example}"), "rotated", bits, feedback)
        if row is None:
            raise Missing(f"accuracy_{example}.json has no rotated at {bits} bits")
        if len(row["seeds"]) < 3:
            raise Missing(f"accuracy_{example}.json has less than 3 seeds")
        return accuracy.harm(row)

    return figure


def harm_of_noise(example: str) -> Callable[[Results], float]:
    """Of 4 bits, as a share of the standard deviation of the exact runs' seeds."""
    of_four = harm(example, 4, False)
    return lambda r: abs(of_four(r)) / accuracy.noise(r.of(f"accuracy_{example}"))
