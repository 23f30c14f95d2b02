"""build_kernels.py: which nvcc and architectures it takes, what it makes, and what it says of what
it cannot.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.kernels.resources import build

LATER = "CuPy's NVRTC compiles them on first use"
GCC = shutil.which("gcc")  # before the fixture
in_sight = build.archs_in_sight


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CGX_CUDA_ARCHS", raising=False)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(build, "HSACO", tmp_path / "_kernels.hsaco")
    monkeypatch.setattr(build, "HIP_WORK", tmp_path / "hip")
    monkeypatch.setattr(build, "archs_in_sight", lambda: [90])


def script(path: Path, body: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def nvcc(path: Path, known: str = "sm_80 sm_90 sm_100", compiles: bool = True) -> str:
    """It lists what it knows, and as a fatbin writes its arguments."""
    lines = "\\n".join(known.split())
    compiler = 'for out; do :; done; echo "$@" > "$out"' if compiles else "echo 'bad gcc'; exit 1"
    return script(path, f"case $1 in --list-gpu-code) printf '{lines}\\n';; *) {compiler};; esac")


def test_where_nvcc_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert build.find_nvcc() is None
    on_path = nvcc(tmp_path / "path/nvcc")
    assert build.find_nvcc() == on_path
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))  # without an nvcc
    assert build.find_nvcc() == on_path
    in_home = nvcc(tmp_path / "cuda/bin/nvcc")
    assert build.find_nvcc() == in_home


@pytest.mark.parametrize(
    "text, archs",
    [
        ("", None),
        (" ", None),
        ("0", []),
        ("90", ["90"]),
        ("80;90", ["80", "90"]),
        ("80,90+PTX, 90+ptx", ["80", "90+PTX"]),
        ("100+PTX 120", ["100+PTX", "120"]),
    ],
)
def test_lists_of_architectures(
    monkeypatch: pytest.MonkeyPatch, text: str, archs: list[str] | None
) -> None:
    monkeypatch.setenv("CGX_CUDA_ARCHS", text)
    found = build.wanted_archs()
    assert (None if found is None else [str(arch) for arch in found]) == archs


@pytest.mark.parametrize("bad", ["sm_90", "9", "8.0", "80+", "080", "90;0", "native", "1000", ";"])
def test_bad_lists_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bad: str) -> None:
    monkeypatch.setenv("CGX_CUDA_ARCHS", f"80;{bad}" if bad != ";" else bad)
    with pytest.raises(SystemExit, match=rf"CGX_CUDA_ARCHS is '.*{re.escape(bad)}'.*allowed: .*80"):
        build.build(tmp_path / "work")


def test_all_are_those_that_the_project_supports(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CGX_CUDA_ARCHS", "all")
    path = nvcc(tmp_path / "path/nvcc", "sm_75 sm_80 sm_90 sm_100 sm_120")
    built = build.build(tmp_path / "work")
    assert set(built) == {"_kernels.cu", "_kernels.fatbin"}
    assert capsys.readouterr().out == f"torch_cgx: GPU kernels for 80+PTX, 90, 100 ({path})\n"
    said = built["_kernels.fatbin"].read_text()
    for code in ("80,code=[sm_80,compute_80]", "90,code=sm_90", "100,code=sm_100"):
        assert f"-gencode arch=compute_{code}" in said
    assert said.count("-gencode") == 3 and "--fmad=false" in said


@pytest.mark.parametrize(
    ("sights", "archs"),
    [
        ([90], "90"),
        ([90, 80], "90, 80"),
        ([89], "86+PTX"),  # nvcc does not know it
        ([103, 100], "90+PTX"),
        ([90, 100], "90, 90+PTX"),
    ],
)
def test_the_default_is_the_gpus_in_sight(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    sights: list[int],
    archs: str,
) -> None:
    monkeypatch.setattr(build, "archs_in_sight", lambda: sights)
    path = nvcc(tmp_path / "path/nvcc", "sm_75 sm_80 sm_86 sm_90")
    assert "_kernels.fatbin" in build.build(tmp_path / "work")
    assert capsys.readouterr().out == f"torch_cgx: GPU kernels for {archs} ({path})\n"


def test_no_gpu_in_sight(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "archs_in_sight", list)
    nvcc(tmp_path / "path/nvcc")
    assert set(build.build(tmp_path / "work")) == {"_kernels.cu"}
    assert capsys.readouterr().out == (
        "torch_cgx: built without GPU kernels (no GPU in this machine; CGX_CUDA_ARCHS=all builds "
        f"the kernels that the wheels have); {LATER}\n"
    )


def test_a_gpu_that_is_too_old(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "archs_in_sight", lambda: [52])
    nvcc(tmp_path / "path/nvcc", "sm_75 sm_80")
    assert set(build.build(tmp_path / "work")) == {"_kernels.cu"}
    assert "knows nothing that runs on the GPU here, sm_52" in capsys.readouterr().err


@pytest.mark.skipif(GCC is None, reason="no gcc")
def test_architectures_come_from_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A driver of two GPUs, sm_90 and sm_80; and none."""
    (tmp_path / "driver.c").write_text(
        "int cuInit(unsigned flags) { return flags; }\n"
        "int cuDeviceGetCount(int* count) { *count = 2; return 0; }\n"
        "int cuDeviceGetAttribute(int* value, int attribute, int device) {\n"
        "  *value = attribute == 75 ? 9 - device : 0;\n"
        "  return attribute != 75 && attribute != 76;\n"
        "}\n"
    )
    library = tmp_path / "libcuda.so.1"
    command = [GCC, "-shared", "-fPIC", str(tmp_path / "driver.c"), "-o", str(library)]
    subprocess.run(command, check=True, env={"PATH": os.defpath})
    load = ctypes.CDLL
    monkeypatch.setattr(build.ctypes, "CDLL", lambda name: load(str(tmp_path / name)))
    assert in_sight() == [90, 80]
    monkeypatch.setattr(build.ctypes, "CDLL", lambda name: load(str(tmp_path / "none" / name)))
    assert in_sight() == []


def test_an_old_nvcc_does_not_know_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvcc(tmp_path / "path/nvcc", "sm_86 sm_90")
    for asked, unknown in (("90;100", "sm_100"), ("all", "sm_80, sm_100")):
        monkeypatch.setenv("CGX_CUDA_ARCHS", asked)
        words = f"CGX_CUDA_ARCHS: .*does not know {unknown}; .* 86, 90"
        with pytest.raises(SystemExit, match=words):
            build.build(tmp_path / "work")


def test_without_nvcc(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(build.build(tmp_path)) == {"_kernels.cu"}
    assert capsys.readouterr() == (
        f"torch_cgx: built without GPU kernels (no nvcc found); {LATER}\n",
        "",
    )
    monkeypatch.setenv("CGX_CUDA_ARCHS", "90")
    with pytest.raises(SystemExit, match="CGX_CUDA_ARCHS: there is no nvcc"):
        build.build(tmp_path)


def test_no_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nvcc(tmp_path / "path/nvcc")
    monkeypatch.setenv("CGX_CUDA_ARCHS", "0")
    assert set(build.build(tmp_path)) == {"_kernels.cu"}
    said = capsys.readouterr().out
    assert said == f"torch_cgx: built without GPU kernels (CGX_CUDA_ARCHS=0); {LATER}\n"


@pytest.mark.parametrize("kind", ["fails", "lists nothing", "does not start"])
def test_a_bad_nvcc(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path = nvcc(tmp_path / "path/nvcc", "" if kind == "lists nothing" else "sm_90", False)
    if kind == "does not start":
        Path(path).write_text("#!/no/such/shell\n")
    said = {"fails": "bad gcc", "lists nothing": "names no architecture"}.get(kind, kind)
    assert set(build.build(tmp_path / "work")) == {"_kernels.cu"}
    err = capsys.readouterr().err
    assert "warning: torch_cgx is built without GPU kernels" in err and said in err
    monkeypatch.setenv("CGX_CUDA_ARCHS", "90")
    with pytest.raises(SystemExit, match=f"CGX_CUDA_ARCHS: (.|\n)*{said}"):
        build.build(tmp_path / "work")


def test_kernels_are_built_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvcc(tmp_path / "path/nvcc")
    work = tmp_path / "work"

    def times() -> dict[str, int]:
        time.sleep(0.02)  # clocks of file systems are coarse
        built = build.build(work)
        return {name: path.stat().st_mtime_ns for name, path in built.items()}

    first = times()
    assert times() == first
    monkeypatch.setenv("CGX_CUDA_ARCHS", "80")
    other = times()
    assert other["_kernels.cu"] == first["_kernels.cu"]
    assert other["_kernels.fatbin"] > first["_kernels.fatbin"]
    whole = build.one_file()
    monkeypatch.setattr(build, "one_file", lambda: whole + "// changed\n")
    changed = times()
    assert all(changed[name] > other[name] for name in changed)
    nvcc(tmp_path / "path/nvcc")  # another one
    assert times()["_kernels.fatbin"] > changed["_kernels.fatbin"]


def test_one_file_holds_all_and_includes_nothing_but_what_compilers_have() -> None:
    text = build.one_file()
    assert set(re.findall(r"^#include (.*)$", text, re.MULTILINE)) == {
        "<cstdint>",
        "<hip/hip_runtime.h>",
    }
    for name in ("encode", "decode", "sum", "long_encode", "long_sum", "finite"):
        assert text.count(f"CGX_KERNEL(cgx_{name}, ") == 1
    assert "RandomKey random_key(" not in text and "pragma once" not in text
    opened = len(re.findall(r"^#if", text, re.MULTILINE))
    assert opened == len(re.findall(r"^#endif", text, re.MULTILINE)) > 0


def test_every_inline_function_is_one_of_devices() -> None:
    """NVRTC refuses to compile a file with a host function, even if no kernel calls it."""
    inline = re.compile(r"^\s*(?:static\s+)?inline\s+(?!constexpr\b)")
    assert [line for line in build.one_file().splitlines() if inline.match(line)] == []


def test_lines_keep_their_numbers() -> None:
    """Errors of compilers have to name the place in the source tree."""
    seen = 0
    file, number = "", 0
    for line in build.one_file().splitlines():
        if found := re.match(r'#line (\d+) "(.*)"', line):
            file, number = found[2], int(found[1])
            continue
        if line and file:
            assert (build.ROOT / file).read_text().splitlines()[number - 1] == line
            seen += 1
        number += 1
    assert seen > 500


def test_kernels_for_amd_are_packed_only_if_they_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "one_file", lambda: "the source\n")
    hipcc = script(tmp_path / "hipcc", 'for out; do :; done; echo "$@" > "$out"')
    build.hip([hipcc, "gfx90a,gfx942"])
    said = build.HSACO.read_text()
    assert "--offload-arch=gfx90a --offload-arch=gfx942" in said and "-ffp-contract=off" in said
    assert build.build(tmp_path / "work")["_kernels.hsaco"] == build.HSACO
    capsys.readouterr()
    monkeypatch.setattr(build, "one_file", lambda: "another source\n")
    assert "_kernels.hsaco" not in build.build(tmp_path / "work")
    assert "made from another source" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="make kernels-hip: .*failed"):
        build.hip([script(tmp_path / "hipcc", "exit 1"), "gfx90a"])


def test_into_the_source_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "one_file", lambda: "the source\n")
    nvcc(tmp_path / "path/nvcc")
    build.main([])
    assert (tmp_path / "_kernels.cu").read_text() == "the source\n"
    assert "-fatbin" in (tmp_path / "_kernels.fatbin").read_text()
    with pytest.raises(SystemExit, match="python build_kernels.py hip HIPCC ARCHS"):
        build.main(["hip"])
