"""What was asked of the speed, and what the results in the tree say.

    python -m benchmarks targets

Reads benchmarks/results/*.json; a row whose results are not there says so. Every figure is a ratio
of medians or a median of ratios within one run.
"""

from __future__ import annotations

import re
import statistics

from benchmarks.report import (
    bounded,
    emulate,
    emulate_gemm,
    figures,
    targets_activations,
    targets_collectives,
    without_avx512,
)
from benchmarks.report.results import Results
from benchmarks.report.target import Target


def _emulate() -> list[Target]:
    what, copy = "`emulate.cast`, 64 MiB,", "`Tensor.copy_`, one core"
    return [
        Target(f"{what} Float to nearest and to zero, slowest", copy, 0.9, _slowest_float),
        Target(f"{what} Float, stochastic, slowest", copy, 0.6, emulate.slowest("stochastic")),
        Target(f"{what} Block, slowest", copy, 0.5, emulate.slowest("block")),
        Target(f"{what} ZScore", copy, 0.3, emulate.slowest("ZScore")),
        Target(
            f"{what} e5m2, slower of two roundings", "qtorch", 50, emulate.times("qtorch"), unit="x"
        ),
        Target(
            f"{what} MX, slowest", "torchao's eager MX", 100, emulate.times("torchao"), unit="x"
        ),
    ]


_slowest_float = emulate.slowest("nearest", "zero")


def _emulate_gemm() -> list[Target]:
    product = "`emulate.matmul`, 1024^3,"
    casts = emulate_gemm.slowest("casts", "fraction")
    plain = emulate_gemm.slowest("sums", "gflops", "plain")
    kahan = emulate_gemm.slowest("sums", "gflops", "Kahan")
    return [
        Target(f"{product} operands cast, slowest", "`torch.matmul`, one core", 0.5, casts),
        Target(f"{product} sums in a format, slowest", "one core", 4, plain, unit=" GFLOP/s"),
        Target(f"{product} with Kahan's rule, slowest", "one core", 1.5, kahan, unit=" GFLOP/s"),
    ]


def _trained(example: str, unit: str, two: float, one: float) -> list[Target]:
    exact = "exact training"
    what = f"{example}, `rotated`"
    return [
        Target(f"{what} 4 bits", "noise of fp32's seeds", 1, figures.harm_of_noise(example), True),
        *(
            Target(f"{what} {bits} bits{how}", exact, most, figure, True, f" {unit}")
            for bits, most in ((2, two), (1, one))
            for feedback, how in ((True, " with error feedback"), (False, ", without"))
            for figure in [figures.harm(example, bits, feedback)]
        ),
    ]


def _hosts(hosts: int) -> list[Target]:
    what = f"{hosts} hosts at 1 Gbit/s, 64 MiB"
    gloo = "gloo fp32"
    return [
        Target(f"{what}, 4 bits", gloo, 7.2, figures.between(hosts, "1gbit", 4), unit="x"),
        Target(f"{what}, 8 bits", gloo, 3.7, figures.between(hosts, "1gbit", 8), unit="x"),
        Target(f"{what}, 2 bits", gloo, 12, figures.between(hosts, "1gbit", 2), unit="x"),
        Target(
            f"{what}, 4 bits", "gloo + fp16 hook", 3.6, figures.against_fp16(hosts, 4), unit="x"
        ),
        Target(
            f"{what}, 16 bits", "gloo + fp16 hook", 1, figures.against_fp16(hosts, 16), unit="x"
        ),
    ]


def _without_avx512() -> list[Target]:
    what = "without AVX-512"
    return [
        Target(
            f"{what}, encode fp32, 64 MiB, slowest of 1-8 bits",
            "min-max scan",
            0.8,
            lambda r: figures.lowest_encode(r, without_avx512.CODEC),
        ),
        *(
            Target(
                f"{what}, 2 hosts at 1 Gbit/s, 64 MiB, `{name}` {bits} bits",
                "gloo fp32",
                least,
                figures.rotated_between(name, bits, without_avx512.HOSTS),
                unit="x",
            )
            for name, bits, least in (
                ("rotated", 1, 17),
                ("rotated", 2, 13),
                ("rotated", 4, 7.2),
                ("trellis", 2, 9),
            )
        ),
    ]


def _bounded() -> list[Target]:
    what = "bounded"
    memory = f"{what}, N(0,.02) at 1e-4 from memory"
    sz3 = "both its algorithms, one run"
    ratio, worst_ratio = bounded.over_sz3("ratio")
    speed, worst_speed = bounded.over_sz3(*bounded.WAYS)
    return [
        Target(
            f"{what}, ratio at N(0,1) and N(0,.02), 1e-4 and 1e-3, lowest",
            "Gaussian-entropy limit",
            0.97,
            bounded.of_limit,
        ),
        Target(
            f"{what}, ratio, lowest of all corpora",
            "original format",
            1,
            bounded.against_original(),
            unit="x",
        ),
        Target(
            f"{what}, ratio, i.i.d. weights, lowest",
            "original format",
            1.07,
            bounded.against_original(bounded.GAUSSIAN),
            unit="x",
        ),
        Target(f"{what}, ratio, sine at 1e-4", "fp32", 41, bounded.sine, unit="x"),
        Target(f"{what}, 10^6 zeros", "bytes", 200, bounded.zeros, True),
        Target(f"{memory}, compress", "GB/s, one core", 1.2, bounded.rate("compress")),
        Target(f"{memory}, decompress", "GB/s, one core", 2, bounded.rate("decompress")),
        Target(f"{memory}, stage before entropy", "min-max scan", 0.3, bounded.stage),
        Target(f"{memory}, decompress, of a copy", "the same memory", 0.3, bounded.over_copy),
        Target(f"{memory}, two threads", "one thread", 1.7, bounded.two_threads, unit="x"),
        Target(
            f"{what}, ratio against SZ3, lowest of all corpora",
            sz3,
            1,
            ratio,
            unit="x",
            name=worst_ratio,
        ),
        Target(
            f"{what}, speed against SZ3, either way, lowest of all corpora",
            sz3,
            1,
            speed,
            unit="x",
            name=worst_speed,
        ),
        Target(
            f"{what}, corpora and bounds with a peer's ratio more than 1 % higher",
            "equal bound, one run",
            0,
            bounded.cells_with_a_better_ratio,
            True,
        ),
        Target(
            f"{what}, corpora with a peer better in ratio and both speeds",
            "equal bound, one run",
            0,
            bounded.cells_with_a_better_peer,
            True,
        ),
        Target(f"{what}, corpora with a bound missed", "float64", 0, bounded.bounds_missed, True),
    ]


TARGETS = [
    Target("encode fp32, 64 MiB, slowest of 1-8 bits", "min-max scan", 0.7, figures.lowest_encode),
    Target("the same, slowest width", "fastest width", 0.8, figures.even_encode),
    Target("decode and add, 64 MiB, slowest of 1-8 bits", "`y += x`", 0.8, figures.lowest_add),
    Target("encode fp32, 256 KiB in L2, slowest", "min-max scan in L2", 0.45, figures.lowest_l2),
    Target("stochastic rounding, 64 MiB, slowest", "nearest", 0.6, figures.stochastic),
    Target("fp16 and bf16 input, values/s, slowest", "fp32 input", 1.0, figures.sixteen_bit_input),
    Target("`codecs` from Python, 64 MiB, slowest", "the engine", 0.9, figures.python_face("")),
    Target("the same, 256 KiB in L2", "the engine", 0.7, figures.python_face(", 256 KiB")),
    Target(
        "a call of `codecs` on 1 KiB, slowest", "the engine", 3, figures.python_call, True, " us"
    ),
    Target("`roundtrip`, 64 MiB, slowest", "encode, decode", 1, figures.roundtrip("roundtrip")),
    Target("the same, in place", "encode, decode", 1, figures.roundtrip("roundtrip in place")),
    *(
        Target(
            f"`{name}`, squared error on {data}, worst of its widths", against, most, figure, True
        )
        for name in figures.ERRORS
        for data, against, most, figure in (
            ("Gaussian", "its targets", 1.0, figures.error(name, "Gaussian")),
            ("gpt", "the same", 1.1, figures.error(name, "gpt")),
            ("resnet", "the same", 1.1, figures.error(name, "resnet")),
        )
    ),
    *(
        Target(f"`{name}`, metadata", "bits per value", 0.04, figures.metadata(name), True)
        for name in figures.ERRORS
    ),
    *(
        Target(
            f"`{name}` {what}, {where}, slowest", roof, least, figures.rotation(name, what, widths)
        )
        for name, what, where, widths, roof, least in (
            ("rotated", "encode", "1-8 bits", range(1, 9), "min-max scan", 0.18),
            ("rotated", "decode+add", "1-8 bits", range(1, 9), "`y += x`", 0.14),
            ("trellis", "encode", "1-2 bits", (1, 2), "min-max scan", 0.06),
            ("trellis", "encode", "3-4 bits", (3, 4), "min-max scan", 0.04),
            ("trellis", "decode+add", "1-4 bits", range(1, 5), "`y += x`", 0.12),
        )
    ),
    Target(
        "exact over SHM, 2 ranks, 64 MiB",
        "gloo fp32",
        3.5,
        figures.speedup("cgx shm exact"),
        unit="x",
    ),
    Target(
        "exact over SHM, 2 ranks, 64 MiB", "DeepSpeed's SHM op", 1.0, figures.deepspeed, unit="x"
    ),
    Target("exact over SHM, 2 ranks, 16 KiB, time", "gloo fp32", 0.15, figures.latency, True, "x"),
    Target(
        "4 bits over SHM, 2 ranks, 64 MiB",
        "gloo fp32",
        3,
        figures.speedup("cgx shm 4 bit"),
        unit="x",
    ),
    *(
        Target(f"16 bits over {where}, 2 ranks, 64 MiB", "gloo + 16-bit hook", 1, figure, unit="x")
        for where, figure in (
            ("SHM", figures.sixteen_bits("shm")),
            ("Gloo", figures.sixteen_bits("gloo")),
        )
    ),
    *_hosts(2),
    *(
        Target(
            f"2 hosts at 1 Gbit/s, 64 MiB, `{name}` {bits} bits",
            "gloo fp32",
            least,
            figures.rotated_between(name, bits),
            unit="x",
        )
        for name, bits, least in (("rotated", 2, 13), ("rotated", 1, 18), ("trellis", 2, 10))
    ),
    Target("the same, `rotated` 4 bits", "`maxmin`", 0.95, figures.rotated_like_maxmin, unit="x"),
    *_hosts(4),
    Target(
        "2 hosts at 10 Gbit/s, 64 MiB, 4 bits",
        "gloo fp32",
        3,
        figures.between(2, "10gbit", 4),
        unit="x",
    ),
    Target(
        "2 hosts at 1 Gbit/s, 64 KiB, 4 bits",
        "gloo fp32",
        1.5,
        figures.between(2, "1gbit", 4, 64 << 10),
        unit="x",
    ),
    Target("the same, slowest of all sizes", "gloo fp32", 0.95, figures.worst_between, unit="x"),
    *_without_avx512(),
    Target(
        "exact over Gloo, 1 to 4 hosts, 4 B to 64 MiB, slowest",
        "gloo fp32",
        0.95,
        lambda r: min(figures.exact(r)),
        unit="x",
    ),
    Target(
        "the same, median",
        "gloo fp32",
        0.95,
        lambda r: statistics.median(figures.exact(r)),
        unit="x",
    ),
    Target(
        "autotuned, 4 bits asked for, 1 KiB to 64 MiB, slowest",
        "the best choice",
        0.95,
        lambda r: min(figures.autotuned(r)),
        unit="x",
    ),
    Target(
        "the same, median",
        "the best choice",
        0.95,
        lambda r: statistics.median(figures.autotuned(r)),
        unit="x",
    ),
    *targets_collectives.targets(),
    Target(
        "training step, 2 hosts at 200 Mbit/s, 4 bits",
        "compute and wire, overlapped",
        1.15,
        figures.training("cgx, 4 bits"),
        True,
        "x",
    ),
    Target(
        "adaptive bits, error^2 at equal bytes, worst",
        "uniform bits",
        0.85,
        figures.adaptive(False),
        True,
    ),
    Target("the same, when the decision ends", "uniform bits", 0.85, figures.adaptive(True), True),
    *_trained("digits", "points", 0.5, 1.5),
    *_trained("gpt", "%", 1, 3),
    Target(
        "FSDP2, GPT, 4-bit gradients, 8-bit weights, loss above",
        "fp32, mean of 3 seeds",
        0.5,
        figures.sharded_loss,
        True,
        " %",
    ),
    Target(
        "DiLoCo, 4 bits, 2 hosts at 50 Mbit/s, loss at equal time",
        "DDP over gloo",
        1,
        figures.diloco_loss,
        True,
        "x",
    ),
    *_bounded(),
    *targets_activations.bytes_and_steps(),
    *targets_activations.of_projections(),
    *targets_activations.of_frontier(),
    *_emulate(),
    *_emulate_gemm(),
    Target(
        "memory of messages between hosts, 64 MiB",
        "3 encoded tensors + 2 segments a peer",
        1,
        figures.staging,
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
