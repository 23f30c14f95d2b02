"""Counts what a warp executes to code a tile of values.

nvdisasm writes the machine code of a cubin. From it comes the graph of a kernel's instructions, and
in that the shortest way from the kernel's start to its end that does what the formula asks for:
exactly so many accesses to memory, at least so many of the operations that no way can do without.
The way of two units less the way of one is what a unit costs; a warp's tile is one way of one unit
and three units more, so what a launch does once is counted for each tile.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from heapq import heappop, heappush
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

SECTION = re.compile(r"^\.text\.(\w+):$")
LABEL = re.compile(r"^(\.L_x_\d+|\$[\w$]+|\.L_\d+):")
INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)(.*?);")
TARGET = re.compile(r"`\((\.?[\w$]+)\)")
ENDS = ("EXIT", "BRA", "CALL", "RET", "BRX", "BPT")  # of a block
TILE, UNIT, LANES = 2048, 512, 32  # values of a tile and of a unit, of csrc/codec/gpu/run.h
ACCESSES = [
    f"{kind}.E{width}" for kind in ("LDG", "STG") for width in ("", ".64", ".128", ".U16", ".U8")
]
# An H200, for the time that a copy of the same bytes takes.
SCHEDULERS, PROCESSORS, CLOCK, COPY = 4, 132, 1.98e9, 4.3e12  # per SM; SMs; Hz; bytes/s
State = tuple[int, tuple[int, ...]]  # a block, and the wanted instructions before it


class Instruction(NamedTuple):
    opcode: str  # with its suffixes: LDG.E.128; @LDG.E.128 where a predicate decides about it
    predicate: str
    target: int | None  # of a branch, by number


def parse(sass: str) -> dict[str, list[Instruction]]:
    """The instructions of each kernel in the output of `nvdisasm -c`."""
    kernels: dict[str, list[Instruction]] = {}
    for name, lines in _sections(sass).items():
        labels: dict[str, int] = {}
        found: list[tuple[str, str, str]] = []
        for line in lines:
            if label := LABEL.match(line):
                labels[label[1]] = len(found)
            elif match := INSTRUCTION.match(line):
                found.append((match[3], match[2] or "", match[4]))
        kernels[name] = [
            Instruction(_name(opcode, predicate), predicate, _target(opcode, rest, labels))
            for opcode, predicate, rest in found
        ]
    return kernels


def _name(opcode: str, predicate: str) -> str:
    return f"@{opcode}" if predicate and opcode.split(".")[0] not in ENDS else opcode


def _sections(sass: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in sass.splitlines():
        if match := SECTION.match(line):
            lines = sections.setdefault(match[1], [])
        lines.append(line)
    return sections


def _target(opcode: str, rest: str, labels: Mapping[str, int]) -> int | None:
    if not opcode.startswith("BRA"):
        return None
    found = TARGET.search(rest)
    if found is None or found[1] not in labels:
        raise ValueError(f"a branch whose target is unknown: {opcode}{rest}")
    return labels[found[1]]


class Block(NamedTuple):
    """Instructions that are always executed one behind the other."""

    opcodes: list[str]
    then: list[int]  # blocks
    ends: bool  # the kernel, where the last instruction is taken


def blocks_of(code: list[Instruction]) -> list[Block]:
    starts = {0, *(one.target for one in code if one.target is not None)}
    starts |= {i + 1 for i, one in enumerate(code) if one.opcode.split(".")[0] in ENDS}
    borders = sorted(start for start in starts if start < len(code))
    number = {start: i for i, start in enumerate(borders)}
    blocks = []
    for start, end in zip(borders, [*borders[1:], len(code)], strict=True):
        last = code[end - 1]
        kind = last.opcode.split(".")[0]
        # A call leads to a division of operands out of the ordinary: never on the way of a tile.
        falls = kind not in ENDS or bool(last.predicate) or last.opcode != kind
        then = [end] if falls and end < len(code) else []
        if last.target is not None:
            then.append(last.target)
        opcodes = [one.opcode for one in code[start:end]]
        blocks.append(Block(opcodes, [number[at] for at in then], kind == "EXIT"))
    return blocks


def shortest(
    code: list[Instruction], exactly: Mapping[str, int], at_least: Mapping[str, int]
) -> Counter[str] | None:
    """By opcode what the shortest way from the first instruction to an EXIT executes that has so
    many instructions of each of these opcodes; FADD* stands for all that begin so. None: there is
    no such way.
    """
    blocks = blocks_of(code)
    wanted = {**exactly, **at_least}
    most = [count if opcode in exactly else 1 << 30 for opcode, count in wanted.items()]
    goal = tuple(wanted.values())
    does = [tuple(_count(block.opcodes, opcode) for opcode in wanted) for block in blocks]
    start = (0, (0,) * len(goal))
    costs = {start: 0}
    before: dict[State, State] = {}
    queue = [(0, start)]
    while queue:
        cost, state = heappop(queue)
        at, counts = state
        if cost > costs[state]:
            continue
        block = blocks[at]
        seen = [a + b for a, b in zip(counts, does[at], strict=True)]
        if any(count > limit for count, limit in zip(seen, most, strict=True)):
            continue
        done = tuple(min(count, enough) for count, enough in zip(seen, goal, strict=True))
        if block.ends and done == goal:
            return _walked(blocks, before, state)
        for then in block.then:
            reached = (then, done)
            if cost + len(block.opcodes) < costs.get(reached, 1 << 30):
                costs[reached] = cost + len(block.opcodes)
                before[reached] = state
                heappush(queue, (costs[reached], reached))
    return None


def _count(opcodes: list[str], wanted: str) -> int:
    if wanted.endswith("*"):
        return sum(opcode.startswith(wanted[:-1]) for opcode in opcodes)
    return opcodes.count(wanted)


def _walked(blocks: list[Block], before: dict[State, State], state: State) -> Counter[str]:
    walked = Counter(blocks[state[0]].opcodes)
    while state in before:
        state = before[state]
        walked.update(blocks[state[0]].opcodes)
    return walked


class Budget(NamedTuple):
    """What a unit of 512 aligned values takes at 4 bits."""

    kernel: str
    buckets: str
    most: float  # instructions of a lane per value, over a tile
    bytes: int  # of values and payload, read and written, per tile
    accesses: dict[str, int]  # of memory; all others none
    at_least: dict[str, int]  # operations of the formula

    @property
    def name(self) -> str:
        return f"`{self.kernel}`, {self.buckets}"


# Extremes: 15 comparisons of 16 values and 5 of lanes, of each kind; where buckets may be shorter,
# each row by itself: 14 of 16 values and 10 of lanes. A code: a difference, a product, a fused
# product, a sum that rounds. A value: two sums and a product. Stochastic rounding converts each
# value to an integer, which is enough to find its way. Lanes exchange codes of float32 once a row
# (csrc/codec/families/maxmin/gpu/warps.h).
_ENCODE = {"FMNMX*": 40, "FFMA*": 16, "FADD*": 32, "SHFL*": 10}
_ENCODE_ANY = {"FMNMX*": 48, "FFMA*": 16, "FADD*": 32, "SHFL*": 20}
_ENCODE_RANDOM = {"F2I*": 16, "SHFL*": 10}
_DECODE = {"FADD*": 32, "FMUL*": 16, "SHFL*": 0}
_PAYLOAD = TILE // 2 + TILE // UNIT * 8
_DEFAULT, _OTHERS = "buckets of 512", "buckets of 64 to 2048"
_RANDOM = "buckets of 512, stochastic"


def _with_exchange(dtype: str, at_least: dict[str, int]) -> dict[str, int]:
    return {**at_least, "SHFL*": at_least["SHFL*"] + (2 if dtype == "fp32" else 0)}


def _encode(dtype: str, buckets: str, most: float, at_least: dict[str, int]) -> Budget:
    size = 4 if dtype == "fp32" else 2
    accesses = {"LDG.E.128": size, "STG.E": 2}
    bytes_ = size * TILE + _PAYLOAD
    least = _with_exchange(dtype, at_least)
    return Budget(f"cgx_maxmin_encode_{dtype}", buckets, most, bytes_, accesses, least)


def _decode(dtype: str, most: float) -> Budget:
    size = 4 if dtype == "fp32" else 2
    accesses = {"LDG.E": 2, "LDG.E.64": 2, "STG.E.128": size}
    bytes_ = size * TILE + _PAYLOAD
    least = _with_exchange(dtype, _DECODE)
    return Budget(f"cgx_maxmin_decode_{dtype}", "any buckets", most, bytes_, accesses, least)


BUDGETS = [
    _encode("fp32", _DEFAULT, 20, _ENCODE),
    _encode("bf16", _DEFAULT, 24, _ENCODE),
    _encode("fp32", _OTHERS, 26, _ENCODE_ANY),
    _encode("bf16", _OTHERS, 26, _ENCODE_ANY),
    _encode("fp32", _RANDOM, 30, _ENCODE_RANDOM),
    _encode("bf16", _RANDOM, 32, _ENCODE_RANDOM),
    _decode("fp32", 12),
    _decode("bf16", 14),
]


class Count(NamedTuple):
    budget: Budget
    per_value: float  # instructions of a lane
    busy: float  # time to issue them, of the time that copying the bytes takes


def count(code: list[Instruction], budget: Budget) -> Count:
    """LookupError: no way through the kernel does what the budget names: it does it otherwise."""
    ways = []
    for units in (1, 2):
        exactly = {access: units * budget.accesses.get(access, 0) for access in ACCESSES}
        at_least = {opcode: units * number for opcode, number in budget.at_least.items()}
        walked = shortest(code, exactly, at_least)
        if walked is None:
            wanted = ", ".join(f"{number} {access}" for access, number in budget.accesses.items())
            raise LookupError(f"{budget.name}: no way through a unit has {wanted}, and no others")
        ways.append(sum(walked.values()))
    of_tile = ways[0] + (TILE // UNIT - 1) * (ways[1] - ways[0])
    copied = budget.bytes / COPY * CLOCK * PROCESSORS
    return Count(budget, of_tile * LANES / TILE, of_tile / SCHEDULERS / copied)


def count_all(sass: str) -> list[Count]:
    kernels = parse(sass)
    return [count(kernels[budget.kernel], budget) for budget in BUDGETS]


def problems(counts: list[Count]) -> list[str]:
    return [
        f"{one.budget.name}: {one.per_value:.1f} instructions a value, allowed: {one.budget.most:g}"
        for one in counts
        if one.per_value > one.budget.most
    ]


def find_nvdisasm(nvcc: str | None) -> str | None:
    """Of the CUDA that has this nvcc, on the PATH, or of the package nvidia-cuda-nvdisasm."""
    beside = Path(nvcc).resolve().parent / "nvdisasm" if nvcc else None
    if beside is not None and beside.exists():
        return str(beside)
    if found := shutil.which("nvdisasm"):
        return found
    try:
        files = metadata.files("nvidia-cuda-nvdisasm") or []
    except metadata.PackageNotFoundError:
        return None
    return next((str(file.locate()) for file in files if file.name == "nvdisasm"), None)


def disassemble(nvdisasm: str, cubin: Path) -> str:
    return subprocess.run(
        [nvdisasm, "-c", str(cubin)], check=True, capture_output=True, text=True
    ).stdout
