"""Compiles the GPU kernels and says what they take: registers, shared memory, local memory,
instructions a value. `make kernels` runs it.

    python -m tests.kernels.resources          # for sm_90; compares the tables of docs/gpu.md, too
    python -m tests.kernels.resources --write  # the same, and writes them
    python -m tests.kernels.resources --others # for the others of the wheels, no tables

Fails on warnings, on local memory, and where a kernel takes more instructions than it may.
"""

from __future__ import annotations

import re
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))
import build_kernels as build  # noqa: E402
from tests.kernels import instructions  # noqa: E402

del sys.path[0]

DOCUMENT = ROOT / "docs/gpu.md"
ARCH = 90  # of the table
MARKS = re.compile(r"(?<=<!-- kernels -->\n).*?(?=<!-- /kernels -->\n)", re.DOTALL)
STRICT = [
    *("-Werror", "all-warnings"),
    "-Xptxas=-v,--warning-as-error,--warn-on-spills,--warn-on-local-memory-usage",
]
REPORT = re.compile(
    r"Compiling entry function '(?P<name>\w+)' for 'sm_(?P<arch>\d+)'\n"
    r".*\n\s*(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads\n"
    r".*Used (?P<registers>\d+) registers(?:.*?(?P<shared>\d+) bytes smem)?"
)


# Instructions of PTX that round otherwise than IEEE operations one by one. Not the reciprocal that
# maxmin_float_reciprocal() begins with, whose error its proof allows for.
FUSED = re.compile(
    r"\b(?:fma|mad)\.[\w.]*f(?:32|64)|div\.full"
    r"|\.approx(?<!rcp\.approx)|\.ftz(?<!rcp\.approx\.ftz)"
)


def without_fma(source: str) -> str:
    """The kernels with a product and a sum where rn_fma() asks for one operation."""
    for name, plain in [
        ("return __fmaf_rn(a, b, c);", "return __fadd_rn(__fmul_rn(a, b), c);"),
        ("return __builtin_fmaf(a, b, c);", "return a * b + c;"),
    ]:
        if source.count(name) != 1:
            raise ValueError(f"{name!r} stands {source.count(name)} times in the kernels, not once")
        source = source.replace(name, plain)
    return source


class Resources(NamedTuple):
    """Of a kernel on an architecture; memory in bytes."""

    name: str
    arch: int
    registers: int  # per thread
    shared: int  # per block
    local: int  # per thread: stack frame and spills


def find_nvcc() -> str | None:
    return build.find_nvcc()


def release(nvcc: str) -> str:
    """As 13.0."""
    found = re.search(r"release ([\d.]+)", build.run([nvcc, "--version"]))
    if found is None:
        raise build.NvccError(f"{nvcc!r} --version names no release")
    return found[1]


def parse(report: str) -> list[Resources]:
    """What ptxas -v has printed."""
    return [
        Resources(
            *(found["name"], int(found["arch"]), int(found["registers"])),
            int(found["shared"] or 0),
            int(found["stack"]) + int(found["stores"]) + int(found["loads"]),
        )
        for found in REPORT.finditer(report)
    ]


def compile_one(nvcc: str, source: Path, arch: int = ARCH) -> tuple[list[Resources], Path, str]:
    """Every kernel on an architecture: what it takes, the cubin, and its PTX, of one compilation.
    NvccError: an error or any warning.
    """
    with tempfile.TemporaryDirectory() as kept:
        output = source.with_suffix(f".{arch}.cubin")
        command = [nvcc, *build.FLAGS, "-cubin", f"-arch=sm_{arch}", str(source), *STRICT]
        found = parse(build.run([*command, "--keep", "--keep-dir", kept, "-o", str(output)]))
        (kept_ptx,) = Path(kept).glob("*.ptx")
        text = kept_ptx.read_text()
    names = kernel_names(source.read_text())
    if not names or {(r.name, r.arch) for r in found} != {(name, arch) for name in names}:
        raise build.NvccError(f"ptxas reports {found}, expected: {sorted(names)} on sm_{arch}")
    return found, output, text


def kernel_names(source: str) -> set[str]:
    names = set(re.findall(r"^CGX_(?:WARP_|BLOCK_)?KERNEL\((\w+)", source, re.MULTILINE))
    for family in re.findall(r"^CGX_TYPED_WARP_KERNELS\((\w+)", source, re.MULTILINE):
        names |= {
            f"cgx_{family}_{operation}_{dtype}"
            for operation in ("encode", "decode")
            for dtype in ("fp32", "fp16", "bf16")
        }
    return names


def ptx(nvcc: str, source: Path, arch: int = ARCH) -> str:
    output = source.with_suffix(f".{arch}.ptx")
    build.run([nvcc, *build.FLAGS, "-ptx", f"-arch=compute_{arch}", str(source), "-o", str(output)])
    return output.read_text()


# Of sm_80 and later: what a GPU that NVRTC compiles for may not have.
NEWER = re.compile(r"\b(?:min|max)\.NaN\.f32|\bcvt\.rn\.b?f16x2")
OLDEST = 75  # that the CUDA of today knows


def threads(text: str) -> dict[str, int]:
    """The most threads of a block, of each kernel in this PTX."""
    found = re.findall(r"\.entry (\w+)\([^)]*\)\s*\.maxntid (\d+)", text)
    return {name: int(number) for name, number in found}


def expected_threads(source: str) -> dict[str, int]:
    """The threads of a block that the host launches, of each kernel of `source`."""
    (block,) = re.findall(r"kThreads = (\d+);", (ROOT / "csrc/codec/gpu/run.h").read_text())
    warps = (ROOT / "csrc/codec/gpu/warp_kernels.h").read_text()
    of = dict.fromkeys(kernel_names(source), int(block))
    for family, number in re.findall(r'\{k\w+, "(\w+)", (\d+), (?:true|false)\}', warps):
        for name in of:
            if f"cgx_{family}_" in name:
                of[name] = 32 * int(number)
    return of


def ptx_problems(text: str, unfused: str, expected: Mapping[str, int]) -> list[str]:
    """Of the kernels' PTX, and of their PTX without_fma(), in which nothing is to be fused."""
    found = []
    if threads(text) != expected:
        found.append(f"threads of a block are {threads(text)}, expected: {dict(expected)}")
    if "fma.rn.f32" not in text:
        found.append("rn_fma() has become no fma.rn.f32")
    if unfused.count("mul.rn.f32") <= 10 or unfused.count("div.rn.f32") <= 5:
        found.append("without rn_fma() there are hardly any products and quotients")
    if fused := sorted(set(FUSED.findall(unfused))):
        found.append(f"without rn_fma() there are {fused}")
    return found


def problems(found: list[Resources]) -> list[str]:
    return [
        f"{r.name} on sm_{r.arch}: {r.local} bytes of local memory (stack frame, spills)"
        for r in found
        if r.local
    ]


def table(
    nvcc_release: str,
    found: list[Resources],
    blocks: dict[str, int],
    counts: list[instructions.Count],
) -> str:
    lines = [
        f"On sm_{ARCH}, as ptxas of CUDA {nvcc_release} says; no kernel uses local memory (no "
        "spills, no stack).\n",
        "| kernel | threads per block | registers per thread | shared memory per block, bytes |",
        "|---|---|---|---|",
    ]
    for r in sorted(found):
        if r.arch == ARCH:
            lines.append(f"| `{r.name}` | {blocks[r.name]} | {r.registers} | {r.shared} |")
    about = (
        "Instructions a value at 4 bits, of aligned values, rounded to the nearest or as named, as "
        "nvdisasm shows them; and the time to issue them, of the time in which an H200 copies the "
        f"bytes that the kernel reads and writes ({instructions.COPY / 1e12:g} TB/s). Below 1.25, "
        "0.8 of a copy is in reach."
    )
    lines += [
        "\n" + textwrap.fill(about, 110) + "\n",
        "| kernel | instructions a value | allowed | time to issue / to copy |",
        "|---|---|---|---|",
    ]
    for one in counts:
        most = one.budget.most
        lines.append(f"| {one.budget.name} | {one.per_value:.1f} | {most:g} | {one.busy:.2f} |")
    return "\n".join(lines) + "\n"


def documented() -> str:
    found = MARKS.findall(DOCUMENT.read_text())
    if len(found) != 1:
        raise ValueError(f"{DOCUMENT} has to hold <!-- kernels --> and <!-- /kernels --> once each")
    return found[0]


def main(argv: list[str]) -> int:
    if argv not in ([], ["--write"], ["--others"]):
        print(__doc__)
        return 2
    nvcc = find_nvcc()
    if nvcc is None:
        print("make kernels needs nvcc (the CUDA toolkit) in CUDA_HOME/bin or on the PATH")
        return 1
    nvdisasm = instructions.find_nvdisasm(nvcc)
    if nvdisasm is None:
        print("make kernels needs nvdisasm: pip install nvidia-cuda-nvdisasm")
        return 1
    with tempfile.TemporaryDirectory() as work, ThreadPoolExecutor() as pool:
        source = build.write_source(Path(work))
        try:
            if argv == ["--others"]:
                archs = [number for number in build.DEFAULT_ARCHS if number != ARCH]
                each = pool.map(lambda arch: compile_one(nvcc, source, arch)[0], archs)
                return _end(found := [*chain(*each)], problems(found))
            oldest = pool.submit(ptx, nvcc, source, OLDEST)
            plain = source.with_name("unfused.cu")
            plain.write_text(without_fma(source.read_text()))
            unfused = pool.submit(ptx, nvcc, plain)
            found, cubin, text = compile_one(nvcc, source)
            failed = ptx_problems(text, unfused.result(), expected_threads(source.read_text()))
            counts = instructions.count_all(instructions.disassemble(nvdisasm, cubin))
            newer = sorted(set(NEWER.findall(oldest.result())))
            version = release(nvcc)
        except (build.NvccError, LookupError) as error:
            print(error)
            return 1
    text = table(version, found, threads(text), counts)
    print(text, end="")
    failed += problems(found) + instructions.problems(counts)
    failed += [f"sm_{OLDEST} has no {instruction}" for instruction in newer]
    if argv:
        DOCUMENT.write_text(MARKS.sub(lambda _: text, DOCUMENT.read_text()))
    elif f"CUDA {version} " not in documented():
        print(f"docs/gpu.md tells of another CUDA than {version}: its table is not compared")
    elif documented() != text:
        failed.append("docs/gpu.md has another table: python -m tests.kernels.resources --write")
    return _end(found, failed)


def _end(found: list[Resources], failed: list[str]) -> int:
    archs = ", ".join(f"sm_{arch}" for arch in sorted({r.arch for r in found}))
    well = f"{len(found)} kernels compiled for {archs}, none with local memory"
    print("\n".join(failed) if failed else well)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
