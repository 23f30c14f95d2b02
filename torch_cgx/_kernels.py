"""The GPU kernels as an image that the driver loads.

Built with the package by nvcc (`_kernels.fatbin`); where there was none, CuPy's NVRTC compiles the
same source (`_kernels.cu`) for the GPU at hand, once: the result stays in a folder of the user's.
Nothing here touches a GPU.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_CHOICES = ("auto", "nvrtc")
# As build_kernels.py gives nvcc: no fused multiply-add, the rest of IEEE arithmetic is the default.
_FLAGS = ("--std=c++17", "--fmad=false")
_TRAILER = hashlib.sha256().digest_size  # of a file in the cache: the hash of what precedes it


def image(major: int, minor: int) -> bytes:
    """The kernels for a GPU of compute capability major.minor: a fatbin, a cubin, or PTX with a
    final 0; what cuModuleLoadData takes.

    RuntimeError: there is neither a fatbin nor CuPy, or NVRTC failed. ValueError: CGX_KERNELS is
    neither of `auto` and `nvrtc`.
    """
    choice = os.environ.get("CGX_KERNELS", "").strip().lower() or "auto"
    if choice not in _CHOICES:
        raise ValueError(f"CGX_KERNELS is {choice!r}, allowed: {', '.join(_CHOICES)}")
    fatbin = _HERE / "_kernels.fatbin"
    if choice == "auto" and fatbin.exists():
        return fatbin.read_bytes()
    return _compiled(10 * major + minor)


def hip_image(arch: str) -> bytes:
    """The kernels for an AMD GPU, as `gfx90a`; features behind a colon do not count.

    RuntimeError: they were not built, or not for this one.
    """
    arch = arch.partition(":")[0]
    how = (
        f"`make kernels-hip HIP_ARCHS={arch}` in torch_cgx's source (it needs hipcc), then install"
    )
    file = _HERE / "_kernels.hsaco"
    if not file.exists():
        raise RuntimeError(f"torch_cgx was built without kernels for AMD GPUs; to get them: {how}")
    code = file.read_bytes()
    if re.search(rf"amdgcn-amd-amdhsa--{re.escape(arch)}\b".encode(), code) is None:
        raise RuntimeError(f"torch_cgx has kernels for AMD GPUs, but not for {arch}: {how}")
    return code


def _compiled(arch: int) -> bytes:
    try:
        source = (_HERE / "_kernels.cu").read_bytes()
    except FileNotFoundError as error:
        raise RuntimeError(
            f"{error.filename} is not there: torch_cgx's build writes it (pip, or, into its source "
            "tree, python build_kernels.py)"
        ) from error
    nvrtc = _nvrtc()
    version = nvrtc.getVersion()
    # A GPU that this NVRTC does not know gets PTX, which its driver compiles.
    known = [number for number in nvrtc.getSupportedArchs() if number <= arch]
    if not known:
        raise RuntimeError(
            f"NVRTC {version} of CuPy does not compile for compute capability {arch}"
        )
    kind = "sm" if arch in known else "compute"
    flags = (*_FLAGS, f"--gpu-architecture={kind}_{max(known)}")
    key = hashlib.sha256(repr((version, flags)).encode() + source).hexdigest()
    file = _cache_folder() / f"{kind}_{max(known)}-{key}"
    code = _read(file)
    if code is None:
        code = _compile(nvrtc, source.decode(), flags, ptx=kind == "compute")
        _write(file, code)
    return code


def _nvrtc() -> Any:
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()  # CuPy loads the library when it is first called
    except Exception as error:
        raise RuntimeError(
            "torch_cgx has no GPU kernels: it was built without nvcc (or CGX_KERNELS=nvrtc asks "
            f"not to use them), and CuPy's NVRTC, which could compile them now, does not load "
            f"({error}). Either install torch_cgx from its source where nvcc is on the PATH or in "
            "CUDA_HOME/bin, or `pip install cupy-cuda12x` (`cupy-cuda13x` for CUDA 13) and the "
            "CUDA libraries it needs (`nvidia-cuda-nvrtc-cu12` or `nvidia-cuda-nvrtc` has NVRTC)"
        ) from error
    return nvrtc


def _compile(nvrtc: Any, source: str, flags: tuple[str, ...], ptx: bool) -> bytes:
    program = nvrtc.createProgram(source, "_kernels.cu", (), ())
    try:
        try:
            nvrtc.compileProgram(program, flags)
        except Exception as error:
            log = nvrtc.getProgramLog(program)
            raise RuntimeError(f"NVRTC with {' '.join(flags)} failed: {error}\n{log}") from error
        if not ptx:
            return bytes(nvrtc.getCUBIN(program))
        text = nvrtc.getPTX(program)
        return (text.encode() if isinstance(text, str) else bytes(text)).rstrip(b"\0") + b"\0"
    finally:
        nvrtc.destroyProgram(program)


def _cache_folder() -> Path:
    """As the XDG Base Directory Specification has it, which lets only absolute paths count."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()) / "torch_cgx"


def _check_folder(folder: Path) -> None:
    """OSError: others may write there, and so choose what runs."""
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError("others may write there")


def _read(file: Path) -> bytes | None:
    """None where there is none, or what is there is not what was written."""
    try:
        _check_folder(file.parent)
        code = file.read_bytes()
    except OSError:
        return None
    code, hashed = code[:-_TRAILER], code[-_TRAILER:]
    return code if hashlib.sha256(code).digest() == hashed else None


def _write(file: Path, code: bytes) -> None:
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_folder(file.parent)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(code + hashlib.sha256(code).digest())
            os.replace(name, file)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        _warn_once(
            f"torch_cgx cannot keep its compiled GPU kernels in {file.parent} ({error}), so every "
            "process compiles them anew; XDG_CACHE_HOME names another folder"
        )


@cache
def _warn_once(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)
