"""Sources of SIMD loops compile a file once per level (csrc/codec/ops/foreach_level-inl.h). No
function that other sources share may come from there: the linker keeps one copy of an inline
function, and one compiled for a level would run on CPUs that lack its instructions.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.distributed import ROOT

CXX = os.environ.get("CXX", "g++").split()
FOREACH = '#include "codec/ops/foreach_level-inl.h"'
SOURCES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "csrc").rglob("*.cc")
    if FOREACH in path.read_text()
)

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or None in map(shutil.which, (CXX[0], "nm", "objdump")),
    reason=f"needs x86-64, {CXX[0]!r}, nm and objdump",
)


def _output(*command: str | Path) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def _functions(source: Path, to: Path) -> tuple[set[str], set[str]]:
    """Functions with AVX instructions, and those that other sources may have, too. Nothing is
    optimized, so that no function is only inlined.
    """
    flags = ["-std=c++20", "-O0", "-w", "-Icsrc", "-c"]
    _output(*CXX, *flags, source, "-o", to)
    shared = set(re.findall(r" [VWu] (\S+)$", _output("nm", to), re.MULTILINE))
    text = _output("objdump", "-d", "--no-show-raw-insn", to)
    found = set()
    for function in re.split(r"\n(?=[0-9a-f]+ <)", text):
        name = re.match(r"[0-9a-f]+ <(.+)>:", function)
        if name and re.search(r"^\s+[0-9a-f]+:\s+v\w+", function, re.MULTILINE):
            found.add(name[1])
    return found, shared


@pytest.mark.parametrize("source", SOURCES)
def test_no_function_of_a_level_is_shared(source: str, tmp_path: Path) -> None:
    found, shared = _functions(ROOT / source, tmp_path / "it.o")
    for level in ("avx2", "avx512"):
        assert any(f"{len(level)}{level}" in name for name in found), f"no function of {level}"
    assert not found & shared


def test_a_shared_function_of_a_level_is_found(tmp_path: Path) -> None:
    (tmp_path / "loops-inl.h").write_text(
        "namespace cgx { namespace CGX_LEVEL {\n"
        "template <typename T> struct Shared { static void twice(T* x) { x[0] += x[0]; } };\n"
        "template struct Shared<float>;\n"
        "} }\n"
    )
    source = tmp_path / "loops.cc"
    source.write_text(f'#define CGX_LEVEL_FILE "{tmp_path}/loops-inl.h"\n{FOREACH}\n')
    found, shared = _functions(source, tmp_path / "it.o")
    assert len(found & shared) == 2


def test_sources_of_loops_are_found() -> None:
    assert len(SOURCES) >= 5
