"""torch_cgx._kernels: which image is taken, and what becomes of those that NVRTC compiles."""

from __future__ import annotations

import os
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kernels.resources import build
from torch_cgx import _kernels


class Nvrtc(types.ModuleType):
    """As cupy.cuda.nvrtc; what it compiles tells how."""

    def __init__(self) -> None:
        super().__init__("cupy.cuda.nvrtc")
        self.version = (12, 9)
        self.archs = (80, 90, 100)
        self.compiled = 0
        self.alive: dict[int, tuple[str, tuple[str, ...]]] = {}
        self.error: str | None = None

    def getVersion(self) -> tuple[int, int]:
        return self.version

    def getSupportedArchs(self) -> tuple[int, ...]:
        return self.archs

    def createProgram(self, source: str, name: str, headers: Any, names: Any) -> int:
        assert isinstance(source, str) and tuple(headers) == tuple(names) == ()
        self.alive[1] = source, ()
        return 1

    def compileProgram(self, program: int, options: tuple[str, ...]) -> None:
        self.compiled += 1
        self.alive[program] = self.alive[program][0], tuple(options)
        if self.error:
            raise Exception(self.error)

    def getProgramLog(self, program: int) -> str:
        return "line 7: no such thing"

    def getCUBIN(self, program: int) -> bytes:
        return f"cubin {self.alive[program]}".encode()

    def getPTX(self, program: int) -> bytes:
        return f"ptx {self.alive[program]}".encode()

    def destroyProgram(self, program: int) -> None:
        del self.alive[program]


@pytest.fixture
def nvrtc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Nvrtc:
    """In a package without a fatbin, for a user without a cache."""
    fake = Nvrtc()
    cupy, cuda = types.ModuleType("cupy"), types.ModuleType("cupy.cuda")
    cupy.cuda, cuda.nvrtc = cuda, fake  # type: ignore[attr-defined]
    for module in (cupy, cuda, fake):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    package = tmp_path / "package"
    package.mkdir()
    (package / "_kernels.cu").write_text("// the source\n")
    monkeypatch.setattr(_kernels, "_HERE", package)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CGX_KERNELS", raising=False)
    _kernels._warn_once.cache_clear()
    return fake


def cached(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache/torch_cgx").iterdir())


def test_the_fatbin_comes_first(
    nvrtc: Nvrtc, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "package/_kernels.fatbin").write_bytes(b"fatbin")
    for choice in ("", "auto", " Auto "):
        monkeypatch.setenv("CGX_KERNELS", choice)
        assert _kernels.image(9, 0) == b"fatbin"
    assert nvrtc.compiled == 0 and not (tmp_path / "cache").exists()
    monkeypatch.setenv("CGX_KERNELS", "nvrtc")
    assert _kernels.image(9, 0).startswith(b"cubin")
    monkeypatch.setenv("CGX_KERNELS", "nvcc")
    with pytest.raises(ValueError, match="CGX_KERNELS is 'nvcc', allowed: auto, nvrtc"):
        _kernels.image(9, 0)


def test_compiled_once(nvrtc: Nvrtc, tmp_path: Path) -> None:
    first = _kernels.image(9, 0)
    options = ("--std=c++17", "--fmad=false", "--gpu-architecture=sm_90")
    assert first == f"cubin {('// the source' + chr(10), options)}".encode()
    assert not nvrtc.alive  # the program was destroyed
    assert _kernels.image(9, 0) == first and nvrtc.compiled == 1
    (file,) = cached(tmp_path)
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert file.stat().st_mode & 0o077 == 0


def test_whatever_matters_is_in_the_name(
    nvrtc: Nvrtc, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def change_source() -> None:
        (tmp_path / "package/_kernels.cu").write_text("// another source\n")

    changes: list[Callable[[], None]] = [
        lambda: None,
        change_source,
        lambda: setattr(nvrtc, "version", (12, 8)),
        lambda: monkeypatch.setattr(_kernels, "_FLAGS", ("--std=c++20", "--fmad=false")),
    ]
    for number, change in enumerate(changes):
        change()
        for _ in range(2):
            _kernels.image(9, 0)
            _kernels.image(8, 0)
        assert nvrtc.compiled == 2 * (number + 1) == len(cached(tmp_path))


def test_gpus_that_nvrtc_does_not_know(nvrtc: Nvrtc) -> None:
    code = _kernels.image(12, 1)
    assert code.startswith(b"ptx") and b"compute_100" in code and code.endswith(b")\0")
    assert _kernels.image(12, 0) == code and nvrtc.compiled == 1
    with pytest.raises(RuntimeError, match=r"NVRTC \(12, 9\) .* compute capability 75"):
        _kernels.image(7, 5)


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "longer", "a folder"])
def test_a_damaged_file_is_compiled_anew(nvrtc: Nvrtc, tmp_path: Path, damage: str) -> None:
    first = _kernels.image(9, 0)
    (file,) = cached(tmp_path)
    whole = file.read_bytes()
    flipped = bytes([whole[0] ^ 1]) + whole[1:]
    if damage == "a folder":
        file.unlink()
        file.mkdir()
        (file / "x").touch()
        with pytest.warns(RuntimeWarning, match="cannot keep"):
            assert _kernels.image(9, 0) == first
        return
    file.write_bytes({"empty": b"", "cut": whole[:-9], "flipped": flipped}.get(damage, whole * 2))
    assert _kernels.image(9, 0) == first and nvrtc.compiled == 2
    assert file.read_bytes() == whole
    assert _kernels.image(9, 0) == first and nvrtc.compiled == 2


@pytest.mark.parametrize("why", ["a file is there", "others write there"])
def test_a_folder_that_is_no_use_is_told_once(nvrtc: Nvrtc, tmp_path: Path, why: str) -> None:
    if why == "a file is there":
        (tmp_path / "cache").touch()
    else:
        folder = tmp_path / "cache/torch_cgx"
        folder.mkdir(parents=True)
        folder.chmod(0o777)
    with pytest.warns(RuntimeWarning, match=r"cannot keep .* in .*/cache/torch_cgx .*XDG_CACHE_H"):
        first = _kernels.image(9, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _kernels.image(9, 0) == first
    assert nvrtc.compiled == 2


def test_what_others_may_have_put_there_is_not_loaded(nvrtc: Nvrtc, tmp_path: Path) -> None:
    first = _kernels.image(9, 0)
    (file,) = cached(tmp_path)
    other = b"other code"
    file.write_bytes(other + _kernels.hashlib.sha256(other).digest())
    assert _kernels.image(9, 0) == other  # whose it is, is all that counts
    file.parent.chmod(0o770)
    with pytest.warns(RuntimeWarning, match="others may write there"):
        assert _kernels.image(9, 0) == first


def test_nothing_half_written_is_left(
    nvrtc: Nvrtc, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        _kernels.image(9, 0)
    assert cached(tmp_path) == []


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    for base in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", base)
        assert _kernels._cache_folder() == Path("/home/u/.cache/torch_cgx")
    monkeypatch.setenv("XDG_CACHE_HOME", "/scratch")
    assert _kernels._cache_folder() == Path("/scratch/torch_cgx")


def test_a_failed_compilation_shows_its_log(nvrtc: Nvrtc, tmp_path: Path) -> None:
    nvrtc.error = "NVRTC_ERROR_COMPILATION (6)"
    said = r"sm_90 failed: NVRTC_ERROR_COMPILATION \(6\)\nline 7: no such thing"
    with pytest.raises(RuntimeError, match=said):
        _kernels.image(9, 0)
    assert not nvrtc.alive and not (tmp_path / "cache").exists()


@pytest.mark.parametrize("missing", ["CuPy", "its library"])
def test_neither_fatbin_nor_nvrtc(
    nvrtc: Nvrtc, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    def load() -> None:
        raise RuntimeError("libnvrtc.so.12 is not there")

    if missing == "CuPy":
        monkeypatch.setitem(sys.modules, "cupy", None)
        monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    else:
        monkeypatch.setattr(nvrtc, "getVersion", load)
    with pytest.raises(RuntimeError) as refused:
        _kernels.image(9, 0)
    text = str(refused.value)
    for word in ("without nvcc", "nvcc is on the PATH", "pip install cupy-cuda12x", "cupy-cuda13x"):
        assert word in text
    assert ("cupy" if missing == "CuPy" else "libnvrtc.so.12 is not there") in text


def test_a_package_that_was_not_built_whole(nvrtc: Nvrtc, tmp_path: Path) -> None:
    (tmp_path / "package/_kernels.cu").unlink()
    with pytest.raises(RuntimeError, match=r"_kernels\.cu is not there: .*build_kernels\.py"):
        _kernels.image(9, 0)


def test_kernels_for_amd(nvrtc: Nvrtc, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="without kernels for AMD.*make kernels-hip HIP_ARCHS=g"):
        _kernels.hip_image("gfx90a")
    code = b"xx hipv4-amdgcn-amd-amdhsa--gfx90a yy"
    (tmp_path / "package/_kernels.hsaco").write_bytes(code)
    assert _kernels.hip_image("gfx90a:sramecc+:xnack-") == _kernels.hip_image("gfx90a") == code
    for other in ("gfx942", "gfx90", "gfx90ab"):
        with pytest.raises(RuntimeError, match=f"not for {other}: .*HIP_ARCHS={other}"):
            _kernels.hip_image(other)


def test_the_real_nvrtc_compiles_the_real_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nvrtc = pytest.importorskip("cupy.cuda", reason="there is no CuPy (cupy-cuda12x)").nvrtc
    try:
        nvrtc.getVersion()
    except Exception as error:
        pytest.skip(f"CuPy finds no NVRTC: {error}")
    build.write_source(tmp_path)
    monkeypatch.setattr(_kernels, "_HERE", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CGX_KERNELS", "nvrtc")
    for arch in (80, 90):
        code = _kernels.image(*divmod(arch, 10))
        assert code.startswith(b"\x7fELF") and code == _kernels.image(*divmod(arch, 10))
        for name in ("encode", "decode", "sum", "wide_encode", "wide_sum", "finite"):
            assert f".text.cgx_{name}\0".encode() in code
    assert len(cached(tmp_path)) == 2
    monkeypatch.setattr(nvrtc, "getSupportedArchs", lambda: (80, 90))
    text = _kernels.image(99, 0)
    assert text.endswith(b"\0") and b".target sm_90" in text and b"fma." not in text
