"""Counts what a warp executes: the instructions on a kernel's shortest way through a tile.

nvdisasm writes the machine code of a cubin. From it comes the graph of a kernel's instructions, and
in that the shortest way from the kernel's start to its end that does the memory accesses of one
tile: so many of 16 bytes, so many of codes. What a launch does once is counted as if each tile did
it. Loops that the compiler has not unrolled are walked as often as their accesses say.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from heapq import heappop, heappush
from typing import NamedTuple

SECTION = re.compile(r"^\.text\.(\w+):$")
LABEL = re.compile(r"^(\.L_x_\d+|\$[\w$]+|\.L_\d+):")
INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)(.*?);")
TARGET = re.compile(r"`\((\.?[\w$]+)\)")
ENDS = ("EXIT", "BRA", "CALL", "RET", "BRX", "BPT")  # of a block
State = tuple[int, tuple[int, ...]]  # a block, and the wanted instructions before it


class Instruction(NamedTuple):
    opcode: str  # with its suffixes: LDG.E.128
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
            Instruction(opcode, predicate, _target(opcode, rest, labels))
            for opcode, predicate, rest in found
        ]
    return kernels


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


def shortest(code: list[Instruction], wanted: Mapping[str, int]) -> Counter[str] | None:
    """By opcode what the shortest way from the first instruction to an EXIT executes that has at
    least `wanted[opcode]` instructions of each of these opcodes; FADD* stands for all that begin
    so. None: there is no such way.
    """
    blocks = blocks_of(code)
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
        done = tuple(min(a + b, most) for a, b, most in zip(counts, does[at], goal, strict=True))
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
