"""Compiles the extension modules for setup.py, by a ninja file of its own.

The headers that a source includes, directly or through the project's headers, decide its kind:

    core     neither Python's nor torch's: most sources. One object serves all versions of torch.
    torch    torch's, which alone cost a compilation twenty seconds.
    python   pybind11's. Every object gets a copy of pybind11, so a module's sources become one.
    bindings torch's and pybind11's: compiled with torch's flags, and a module's sources become one.

A unit is a group of core or torch sources from one folder that one compilation includes (units_of).
Units save two thirds of the time. The sources of a unit share one anonymous namespace, so two of
them cannot use a name there for different things. A source of SIMD loops, which compiles them for
each level (LEVELS), stays a unit by itself. CGX_UNITS=0 makes every source a unit.

The build precompiles torch's headers for the torch sources, and the standard library's headers for
the core sources.

ninja compiles a unit again after a change of a source, a header, a flag or the compiler, and links
a module again if the list of its sources changes. It runs in ROOT with relative paths, so a copy of
the tree can use the objects that were copied with it.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent
INCLUDED_AS = ("csrc", "tests")  # folders in which "..." of an #include is looked for
PRECOMPILED = {"core": "csrc/base/precompiled.h", "torch": "csrc/backend/precompiled.h"}
KINDS = ("core", "torch", "python", "bindings")
LEVELS = "csrc/codec/ops/foreach_level-inl.h"  # compiles SIMD loops once a level: takes longest
MOST_IN_UNIT = 8  # sources; more leave a core idle at the end, and cost more after a change
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)


@dataclass(frozen=True)
class Tools:
    """Compiler, linker and flags, as the interpreter, torch and the environment give them."""

    compiler: list[str]
    flags: dict[str, list[str]]  # core, python (without torch's) and torch (with both)
    linker: list[str]  # with what stands before the objects


@dataclass(frozen=True)
class Module:
    name: str
    sources: list[str]  # relative to ROOT
    libraries: list[str]  # what stands behind the objects


def kind_of(source: str) -> str:
    """Of KINDS; `source` is relative to ROOT."""
    systems: set[str] = set()
    seen, left = {source}, [source]
    while left:
        found, headers = _included(left.pop())
        systems |= found
        left += headers - seen
        seen |= headers
    torch = any(name.startswith(("torch/", "ATen/", "c10/")) for name in systems)
    pybind = any(name.startswith("pybind11/") for name in systems)
    return KINDS[torch + 2 * (pybind or ("Python.h" in systems and not torch))]


@functools.cache
def _included(path: str) -> tuple[frozenset[str], frozenset[str]]:
    """By one file alone: as <...>, and the project's headers."""
    found = INCLUDE.findall((ROOT / path).read_text())
    headers = {f"{folder}/{quoted}" for folder in INCLUDED_AS for quoted, _ in found if quoted}
    here = (name for name in headers if (ROOT / name).is_file())
    return frozenset(system for _, system in found), frozenset(here)


def units_of(sources: list[str], together: bool = True) -> list[list[str]]:
    """Groups sources of one kind into units: each folder's sources in even groups of at most
    MOST_IN_UNIT. With together=False every source is a unit.
    """
    units = []
    for _, found in itertools.groupby(sorted(sources), key=os.path.dirname):
        some = [*found]
        alone = [one for one in some if not together or LEVELS in _included(one)[1]]
        units += [[one] for one in alone]
        rest = [one for one in some if one not in alone]
        parts = -(-len(rest) // MOST_IN_UNIT)
        units += [rest[i * len(rest) // parts : (i + 1) * len(rest) // parts] for i in range(parts)]
    return units


def write_unit(folder: Path, unit: list[str]) -> Path:
    """Writes a file into `folder` that includes the sources of `unit`. The first one names it."""
    more = f"_and_{len(unit) - 1}_more" if len(unit) > 1 else ""
    whole = folder / f"{os.path.splitext(unit[0])[0]}{more}.cc"
    whole.parent.mkdir(parents=True, exist_ok=True)
    _write(whole, "".join(map(_include, unit)))
    return whole


def in_units() -> bool:
    """CGX_UNITS."""
    wanted = os.environ.get("CGX_UNITS", "").strip()
    if wanted not in ("", "0", "1"):
        sys.exit(f"CGX_UNITS is {wanted!r}, allowed: 0, 1 (compiles several sources at once)")
    return wanted != "0"


def find_ninja() -> str:
    """The interpreter's own ninja, if it has one: an environment that is not activated has none in
    its PATH.
    """
    own = Path(sysconfig.get_path("scripts")) / "ninja"
    found = str(own) if own.exists() else shutil.which("ninja")
    if found is None:
        sys.exit("torch_cgx builds with ninja, and there is none: pip install ninja")
    return found


def jobs() -> list[str]:
    """-j for ninja; MAX_JOBS as torch's own builds take it."""
    wanted = os.environ.get("MAX_JOBS", "").strip()
    if not wanted:
        return []
    if not wanted.isdigit() or int(wanted) == 0:
        sys.exit(f"MAX_JOBS is {wanted!r}, allowed: a number from 1 on")
    return ["-j", wanted]


def build(work: Path, tag: str, tools: Tools, modules: list[Module]) -> dict[str, Path]:
    """The modules, by name, in work/tag; objects of the kind core in work/core. `tag` names the
    version of torch. A compiler that fails ends the program.
    """
    ninja = find_ninja()
    _included.cache_clear()
    for folder in (work / "core", work / tag):
        folder.mkdir(parents=True, exist_ok=True)
    with open(work / "lock", "w") as lock:  # several versions of torch share a log and objects
        fcntl.flock(lock, fcntl.LOCK_EX)
        file = work / tag / "build.ninja"
        ninja_file = NinjaFile(work, tag, tools)
        for module in modules:
            ninja_file.module(module)
        _write(file, ninja_file.text())
        done = subprocess.run(
            [ninja, "-f", _from_root(file), *jobs()], cwd=ROOT, env=_environment()
        )
    if done.returncode != 0:
        sys.exit(f"torch_cgx: the build failed (ninja -f {file}, status {done.returncode})")
    return {module.name: work / tag / f"{module.name}.so" for module in modules}


def _write(path: Path, text: str) -> None:
    """A file that is as it was keeps its time."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


class NinjaFile:
    """Collects the lines of a ninja file, and writes the units and headers that they name."""

    def __init__(self, work: Path, tag: str, tools: Tools) -> None:
        self.work, self.tag = work, tag
        self.compiler = _program(tools.compiler)
        self.headers: dict[str, Path] = {}  # by the flags that they are precompiled with
        self.known: set[Path] = set()
        includes = [f"-I{folder}" for folder in INCLUDED_AS]
        compile = "$compiler $flags -MD -MF $out.d -c"
        cached = _cache(tools.compiler)
        self.lines = [
            "ninja_required_version = 1.5",
            f"builddir = {_path(work)}",
            f"compiler = {_command(tools.compiler)}",
            *(f"{key} = {_command([*includes, *flags])}" for key, flags in tools.flags.items()),
            *_rule("compile", f"{cached}{compile} $in -o $out"),
            *_rule("precompile", f"{compile} -x c++-header $in -o $out"),
            *_rule("link", f"{_command(tools.linker)} $in -o $out $libraries"),
        ]
        for key in PRECOMPILED:
            self.headers[key] = header = self.folder(key) / "precompiled.h"
            _write(header, _include(PRECOMPILED[key]))
            self.build(f"{header}.gch", "precompile", [header], [self.compiler], flags=f"${key}")

    def folder(self, kind: str) -> Path:
        return self.work / ("core" if kind == "core" else self.tag)

    def module(self, module: Module) -> None:
        objects = []
        for kind in reversed(KINDS):  # the longest compilation first: no core waits at the end
            sources = sorted(source for source in module.sources if kind_of(source) == kind)
            if kind in ("python", "bindings") and sources:
                whole = self.folder(kind) / f"{module.name}_{kind}.cc"
                _write(whole, "".join(map(_include, sources)))
                objects.append(self.compiled(whole, whole.with_suffix(".o"), kind))
                continue
            for unit in units_of(sources, in_units()):
                if len(unit) == 1:
                    target = (self.folder(kind) / unit[0]).with_suffix(".o")
                    objects.append(self.compiled(ROOT / unit[0], target, kind))
                else:
                    whole = write_unit(self.folder(kind), unit)
                    objects.append(self.compiled(whole, whole.with_suffix(".o"), kind))
        target = self.work / self.tag / f"{module.name}.so"
        self.build(target, "link", objects, [], libraries=_command(module.libraries))

    def compiled(self, source: Path, target: Path, kind: str) -> Path:
        if target not in self.known:
            self.known.add(target)
            key = "torch" if kind == "bindings" else kind
            before, flags = [self.compiler], f"${key}"
            if key in self.headers:
                before.append(f"{self.headers[key]}.gch")
                # A compiler that cannot use that one reads the header itself, and says so.
                header = _from_root(self.headers[key])
                flags += " " + _command(["-include", header, "-Winvalid-pch"])
            self.build(target, "compile", [source], before, flags=flags)
        return target

    def build(
        self, target: object, rule: str, inputs: list[Path], before: list[str], **variables: str
    ) -> None:
        """`before`: what `target` depends on, but is not named in the command."""
        implicit = " ".join(_path(one) for one in before if one)
        line = f"build {_path(target)}: {rule} {' '.join(map(_path, inputs))}"
        self.lines.append(line + (f" | {implicit}" if implicit else ""))
        self.lines += [f"  {name} = {value}" for name, value in variables.items()]

    def text(self) -> str:
        return "\n".join([*self.lines, ""])


def _cache(compiler: list[str]) -> str:
    """What stands before a compilation: ccache, if it is there and does not call the compiler
    already.
    """
    ccache = shutil.which("ccache")
    called = {Path(shutil.which(word) or word).resolve().name for word in compiler[:2]}
    if ccache is None or "ccache" in called:
        return ""
    return _command([ccache]) + " "


def _environment() -> dict[str, str]:
    """With what ccache needs to keep a compilation that uses a precompiled header, and to find it
    again for a copy of the tree. Not in the commands: they would not be a copy's.
    """
    settings = {"BASEDIR": str(ROOT), "SLOPPINESS": "pch_defines,time_macros", "NOHASHDIR": "1"}
    return {**{f"CCACHE_{name}": text for name, text in settings.items()}, **os.environ}


def _program(command: list[str]) -> str:
    """The file of a compiler, which may be called by another one ("ccache g++")."""
    names = itertools.takewhile(lambda word: not word.startswith("-"), command)
    return shutil.which([*names][-1]) or ""


def _rule(name: str, command: str) -> list[str]:
    # The headers of each object stay in files of their own, not in ninja's log: the log forgets
    # objects that the ninja file of another torch does not name.
    depfile = ["  depfile = $out.d"] if "-MF" in command else []
    return [f"rule {name}", f"  command = {command}", f"  description = {name} $out", *depfile]


def _include(source: str) -> str:
    """A line. `source` is relative to ROOT, in a folder of INCLUDED_AS."""
    return f'#include "{source.partition("/")[2]}"\n'


def _from_root(path: object) -> str:
    """As it is called in ROOT."""
    whole = Path(str(path))
    return str(whole.relative_to(ROOT) if whole.is_relative_to(ROOT) else whole)


def _path(path: object) -> str:
    return re.sub(r"([$ :])", r"$\1", _from_root(path))


def _command(words: list[str]) -> str:
    return shlex.join(words).replace("$", "$$")
