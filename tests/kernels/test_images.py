"""torch_cgx._kernels: which image is taken, and what becomes of what NVRTC and hipRTC compile."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kernels import resources
from tests.kernels.resources import build
from torch_cgx import _backend, _hiprtc, _kernel_cache, _kernels


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
    _kernel_cache._warn_once.cache_clear()
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
    with pytest.raises(ValueError, match="CGX_KERNELS='nvcc' is not allowed; .* one of auto,nvrtc"):
        _kernels.image(9, 0)


def test_compiled_once(nvrtc: Nvrtc, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = _kernels.image(9, 0)
    options = ("--std=c++17", "--fmad=false", "--gpu-architecture=sm_90")
    assert first == f"cubin {('// the source' + chr(10), options)}".encode()
    assert not nvrtc.alive  # the program was destroyed
    assert _kernels.image(9, 0) == first and nvrtc.compiled == 1
    said = "cgx: NVRTC compiles the kernels for sm_90, once: this takes a minute or two\n"
    assert capsys.readouterr().err == said
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
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert _kernels.image(9, 0) == first
    assert caught == []
    assert nvrtc.compiled == 2


def test_what_others_may_have_put_there_is_not_loaded(nvrtc: Nvrtc, tmp_path: Path) -> None:
    first = _kernels.image(9, 0)
    (file,) = cached(tmp_path)
    other = b"other code"
    file.write_bytes(other + hashlib.sha256(other).digest())
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
        assert _kernel_cache.folder() == Path("/home/u/.cache/torch_cgx")
    monkeypatch.setenv("XDG_CACHE_HOME", "/scratch")
    assert _kernel_cache.folder() == Path("/scratch/torch_cgx")


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
    with pytest.raises(RuntimeError, match=r"_kernels\.cu is missing: .*build_kernels\.py"):
        _kernels.image(9, 0)


class Hiprtc:
    """As what _hiprtc.load() gives; what it compiles tells how."""

    version = (9, 0)
    compiled = 0

    def compile(self, source: bytes, flags: tuple[str, ...]) -> bytes:
        self.compiled += 1
        return f"code {(source, flags)}".encode()


def test_kernels_for_amd_that_were_built(
    nvrtc: Nvrtc, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hiprtc = Hiprtc()
    monkeypatch.setattr(_hiprtc, "load", lambda: hiprtc)
    code = b"xx hipv4-amdgcn-amd-amdhsa--gfx90a yy"
    (tmp_path / "package/_kernels.hsaco").write_bytes(code)
    assert _kernels.hip_image("gfx90a:sramecc+:xnack-") == _kernels.hip_image("gfx90a") == code
    assert hiprtc.compiled == 0
    for number, other in enumerate(("gfx942", "gfx90", "gfx90ab")):
        assert f"--gpu-architecture={other}'".encode() in _kernels.hip_image(other)
        assert hiprtc.compiled == number + 1
    monkeypatch.setenv("CGX_KERNELS", "hiprtc")
    assert _kernels.hip_image("gfx90a").startswith(b"code ")
    for choice, image in (
        ("nvrtc", _kernels.hip_image),
        ("hiprtc", lambda _: _kernels.image(9, 0)),
    ):
        monkeypatch.setenv("CGX_KERNELS", choice)
        refused = f"CGX_KERNELS='{choice}' is not for .*; allowed: auto, .*rtc"
        with pytest.raises(ValueError, match=refused):
            image("gfx90a")


def test_kernels_for_amd_are_compiled_once(
    nvrtc: Nvrtc, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hiprtc = Hiprtc()
    monkeypatch.setattr(_hiprtc, "load", lambda: hiprtc)
    first = _kernels.hip_image("gfx90a:xnack-")
    assert b"// the source" in first and b"'-ffp-contract=off'" in first
    assert b"'--gpu-architecture=gfx90a:xnack-'" in first
    assert _kernels.hip_image("gfx90a:xnack-") == first and hiprtc.compiled == 1
    (file,) = cached(tmp_path)
    assert file.name.startswith("gfx90a.xnack--")
    hiprtc.version = (9, 1)
    _kernels.hip_image("gfx90a:xnack-")
    (tmp_path / "package/_kernels.cu").write_text("// another source\n")
    _kernels.hip_image("gfx90a:xnack-")
    assert hiprtc.compiled == 3 == len(cached(tmp_path))


def test_groups_and_codecs_load_those_of_the_vendor(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = types.SimpleNamespace(gcnArchName="gfx90a:xnack-")
    monkeypatch.setattr(_backend.torch.cuda, "get_device_properties", lambda: properties)
    monkeypatch.setattr(_kernels, "image", lambda major, minor: f"cuda {major}.{minor}")
    monkeypatch.setattr(_kernels, "hip_image", lambda arch: f"hip {arch}")
    for choice, image in (
        (None, "cuda 9.0"),
        ("", "cuda 9.0"),
        ("1", "cuda 9.0"),
        (" 0", "hip gfx90a:xnack-"),
    ):
        if choice is None:
            monkeypatch.delenv("CGX_CUDA", raising=False)
        else:
            monkeypatch.setenv("CGX_CUDA", choice)
        assert _backend.load_kernels(9, 0) == image


def test_neither_kernels_for_amd_nor_hiprtc(nvrtc: Nvrtc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hiprtc, "_FILES", ["libno-such-hiprtc.so", "libc.so.6"])
    with pytest.raises(
        RuntimeError, match=r"does not load \(libhiprtc.*make kernels-hip HIP_ARCHS="
    ):
        _kernels.hip_image("gfx90a")


def real_hiprtc() -> _hiprtc.Hiprtc:
    try:
        return _hiprtc.load()
    except RuntimeError:
        pytest.skip("there is no hipRTC (Debian: libamdhip64-5)")


@pytest.fixture
def kernels_to_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The real source, in a package that nothing was built for; the user's folder is empty."""
    build.write_source(tmp_path)
    monkeypatch.setattr(_kernels, "_HERE", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CGX_KERNELS", raising=False)
    return tmp_path


NAMES = ("encode", "decode", "sum", "long_encode", "long_sum", "finite")
NAMES += tuple(f"{name}_feedback" for name in ("encode", "sum", "long_encode", "long_sum"))


def test_the_real_hiprtc_compiles_the_real_source(kernels_to_compile: Path) -> None:
    real_hiprtc()
    arch = "gfx90a:sramecc+:xnack-"
    code = _kernels.hip_image(arch)
    assert code.startswith(b"\x7fELF") and code == _kernels.hip_image(arch)
    assert f"amdgcn-amd-amdhsa--{arch}".encode() in code
    for name in NAMES:
        assert f"cgx_{name}.kd\0".encode() in code
    assert len(cached(kernels_to_compile)) == 1


def arithmetic(code: Path) -> dict[str, int]:
    """How often each instruction that fuses or divides floats stands in a code object."""
    done = subprocess.run(
        ["llvm-objdump-15", "--disassemble", "--mcpu=gfx90a", code],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, int] = {}
    for name in re.findall(
        r"^\s+(v_(?:pk_)?(?:fma|mad|mac|div|rcp)\w*_f\d\d\w*)",
        done.stdout,
        re.MULTILINE,
    ):
        found[name] = found.get(name, 0) + 1
    return found


def test_hiprtc_rounds_as_hipcc_does(kernels_to_compile: Path) -> None:
    """Its options are not hipcc's: what they come to is compared."""
    real_hiprtc()
    for tool in ("hipcc", "llvm-objdump-15", "clang-offload-bundler-15"):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool}")
    bundle, hipcc, hiprtc = (kernels_to_compile / name for name in ("bundle", "hipcc", "hiprtc"))
    source = str(kernels_to_compile / "_kernels.cu")
    subprocess.run(
        ["hipcc", *build.HIP_FLAGS, "--offload-arch=gfx90a", "--genco", "-x", "hip", source]
        + ["-o", str(bundle)],
        check=True,
        env=build.ENVIRONMENT,
    )
    subprocess.run(
        ["clang-offload-bundler-15", "--unbundle", "--type=o", f"--input={bundle}"]
        + ["--targets=hipv4-amdgcn-amd-amdhsa--gfx90a", f"--output={hipcc}"],
        check=True,
    )
    hiprtc.write_bytes(_kernels.hip_image("gfx90a"))
    found = arithmetic(hiprtc)
    assert found == arithmetic(hipcc)
    assert found["v_div_fixup_f32"] > 0


def test_hiprtc_shows_its_log() -> None:
    hiprtc = real_hiprtc()
    with pytest.raises(RuntimeError) as refused:
        hiprtc.compile(b"int f() { return no_such_thing; }", ("--gpu-architecture=gfx90a",))
    text = str(refused.value)
    assert "hiprtcCompileProgram of lib" in text and "HIPRTC_ERROR_COMPILATION" in text
    assert "no_such_thing" in text and "\0" not in text


def test_the_runtime_of_amd_has_what_is_called() -> None:
    """By the names of the driver's second table."""
    real_hiprtc()
    names = re.findall(r'"(hip\w+)"', (build.ROOT / "csrc/device/driver.h").read_text())
    assert len(names) > 30
    for file in ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"):
        try:
            library = ctypes.CDLL(file)
        except OSError:
            continue
        assert [name for name in names if not hasattr(library, name)] == []
        return
    pytest.skip("there is no libamdhip64")


def test_the_real_nvrtc_compiles_the_real_source(
    monkeypatch: pytest.MonkeyPatch, kernels_to_compile: Path
) -> None:
    nvrtc = pytest.importorskip("cupy.cuda", reason="there is no CuPy (make kernels-nvrtc)").nvrtc
    try:
        nvrtc.getVersion()
    except Exception as error:
        pytest.skip(f"CuPy finds no NVRTC: {error}")
    code = _kernels.image(9, 0)
    assert code.startswith(b"\x7fELF") and code == _kernels.image(9, 0)
    for name in NAMES:
        assert f".text.cgx_{name}\0".encode() in code
    assert len(cached(kernels_to_compile)) == 1
    monkeypatch.setattr(nvrtc, "getSupportedArchs", lambda: (80, 90))
    source = kernels_to_compile / "_kernels.cu"
    source.write_text(resources.without_fma(source.read_text()))
    text = _kernels.image(99, 0)
    assert text.endswith(b"\0") and b".target sm_90" in text
    assert b"mul.rn.f32" in text and not resources.FUSED.findall(text.decode())
