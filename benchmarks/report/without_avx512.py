"""How fast codecs and all-reduces between hosts are on a processor with AVX2 only, beside one with
AVX-512: two tables of docs/performance.md.

COMMANDS measure the processor with AVX2 only; somebody has to run them on such a machine.
`python -m benchmarks all` measures the other one.
"""

from __future__ import annotations

from benchmarks._command import rate_text
from benchmarks.report import cells as text
from benchmarks.report.figures import MIB64
from benchmarks.report.results import Missing, Results, Row, find

LEVEL = "avx2"
CODEC, HOSTS = "codec_avx2", "hosts_avx2"  # names of results
# What writes these.
COMMANDS = {
    CODEC: f"python -m benchmarks.codec --json benchmarks/results/{CODEC}.json",
    HOSTS: (
        "python -m benchmarks.hosts --hosts 2 --rates 1gbit 10gbit --sizes 64M --bits 8 4 2 "
        "--codecs rotated:1 rotated:2 rotated:4 trellis:2 "
        f"--json benchmarks/results/{HOSTS}.json"
    ),
}
NAMES = (CODEC, HOSTS, "codec", "hosts")  # of all results that the tables are made of

SCAN = "scan fp32"


def _bits(bits: int) -> str:
    return f"{bits} bit{'s' * (bits > 1)}"


# A line of the first table, and its row of the results.
ENCODERS = (
    *((f"`maxmin`, {_bits(b)}", f"encode fp32 {b} nearest") for b in range(1, 9)),
    *((f"from Python, {b} bits", f"Python encode fp32 {b} nearest") for b in (4, 8)),
    *((f"`rotated`, {_bits(b)}", f"encode rotated {b}") for b in (1, 2, 4)),
    ("`trellis`, 2 bits", "encode trellis 2"),
)
# A line of the second one, and its method of the results.
METHODS = (
    *((f"`maxmin`, {b} bits", f"cgx {b} bit") for b in (8, 4, 2)),
    *((f"`rotated`, {_bits(b)}", f"cgx {b} bit rotated") for b in (4, 2, 1)),
    ("`trellis`, 2 bits", "cgx 2 bit trellis"),
)
RATES = ("1gbit", "10gbit")


def table(results: Results) -> str:
    """Both, as Markdown. Missing without one of NAMES, or a scan; another row that results lack is
    an empty cell. ValueError if results of COMMANDS come from a processor of another level.
    """
    for name in COMMANDS:
        level = results.of(name)["machine"]["simd"]
        if level != LEVEL:
            raise ValueError(f"{name}.json was measured with {level} codecs instead of {LEVEL}")
    return "\n".join((codec_table(results), hosts_table(results)))


def codec_table(results: Results) -> str:
    """Encoders by machines and levels, as parts of the scan of the same run."""
    caption = (
        "Encoding 64 MiB of fp32 on one core, as a part of the speed of the min-max scan of the "
        f"same run, at the best level of its machine; {_machines(results, CODEC, 'codec')}. "
        "`from Python`: `maxmin` by `torch_cgx.codecs`. The last column is the second machine with "
        f"its {LEVEL} loops."
    )
    best = results.of("codec")["machine"]["simd"]
    columns = [(CODEC, None), ("codec", None), ("codec", LEVEL)]
    lines = text.head(caption, ["", LEVEL, best, f"{LEVEL} on the {best} machine"])
    lines.append(text.line("min-max scan", [f"{scan(results, n):.1f} GB/s" for n, _ in columns]))
    for title, row in ENCODERS:
        cells = [_share(results, row, name, level) for name, level in columns]
        lines.append(text.line(title, cells))
    return "\n".join(lines) + "\n"


def hosts_table(results: Results) -> str:
    """Methods by rates and machines, in times of gloo."""
    caption = (
        f"Times as fast as `{text.BASE}` in the same run, all-reduce of "
        f"{text.size_text(MIB64)} between 2 hosts x 1 rank; {_machines(results, HOSTS, 'hosts')}."
    )
    columns = [(name, rate) for rate in RATES for name in (HOSTS, "hosts")]
    titles = [f"{rate_text(r)}, {results.of(name)['machine']['simd']}" for name, r in columns]
    lines = text.head(caption, ["", *titles])
    base = [_between(results, text.BASE, *column) for column in columns]
    times = [text.time_text(row["seconds"]) if row else "" for row in base]
    lines.append(text.line(f"{text.BASE}: time", times))
    for title, method in METHODS:
        rows = [_between(results, method, *column) for column in columns]
        lines.append(text.line(title, [text.speedup(row) for row in rows]))
    return "\n".join(lines) + "\n"


def scan(results: Results, name: str) -> float:
    """GB/s of the min-max scan of fp32 values in memory; name: of the results."""
    return float(results.codec(SCAN, name)["gb_per_s"])


def _share(results: Results, row: str, name: str, level: str | None) -> str:
    """A row's speed over that of the scan; level: of the row, None: the best one."""
    try:
        speed = results.codec(row, name, level)["gb_per_s"]
    except Missing:
        return ""
    return f"{speed / scan(results, name):.3f}"


def _between(results: Results, method: str, name: str, rate: str) -> Row | None:
    try:
        return find(results.hosts(2, rate, name), method, MIB64, f"{name}.json")
    except Missing:
        return None


def _machines(results: Results, first: str, second: str) -> str:
    """Both, each with the revision of its code."""
    facts = [results.of(name)["machine"] for name in (first, second)]
    one, other = (f"{text.machine(of)}, revision {of['revision']}" for of in facts)
    return f"{one}, beside {other}"
