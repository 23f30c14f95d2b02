"""The GPU kernels as an image that the driver loads.

nvcc builds them with the package (`_kernels.fatbin`), for AMD's GPUs hipcc (`_kernels.hsaco`). In a
package without them CuPy's NVRTC, or hipRTC, compiles the same source (`_kernels.cu`) for the GPU
at hand, once: the result stays in a folder of the user. This module uses no GPU.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from torch_cgx import _C
from torch_cgx._kernel_cache import cached
from torch_cgx._warnings import say

_HERE = Path(__file__).parent
# The flags that build_kernels.py passes to nvcc: no fused multiply-add; the rest is IEEE by
# default.
_FLAGS = ("--std=c++17", "--fmad=false")
# The flags that build_kernels.py passes to hipcc: nothing is fused, subnormal numbers are kept.
# hipRTC rounds divisions correctly by default, and has no option for it.
_HIP_FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fno-gpu-flush-denormals-to-zero")


def image(major: int, minor: int) -> bytes:
    """The kernels for a GPU of compute capability major.minor, as input of cuModuleLoadData: a
    fatbin, a cubin, or PTX with a final 0.

    RuntimeError: there is neither a fatbin nor CuPy, or NVRTC failed. ValueError: CGX_KERNELS is
    neither `auto` nor `nvrtc`.
    """
    fatbin = _HERE / "_kernels.fatbin"
    if _setting("nvrtc", "NVIDIA") == "auto" and fatbin.exists():
        return fatbin.read_bytes()
    return _compiled(10 * major + minor)


def hip_image(arch: str) -> bytes:
    """The kernels for an AMD GPU, as input of hipModuleLoadData: a code object, or a bundle of
    them.

    arch: as in `gfx90a:sramecc+:xnack-`. RuntimeError: no kernels were built for this GPU, and
    hipRTC is missing or failed. ValueError: CGX_KERNELS is neither `auto` nor `hiprtc`.
    """
    from torch_cgx import _hiprtc

    hsaco = _HERE / "_kernels.hsaco"
    if _setting("hiprtc", "AMD") == "auto" and hsaco.exists():
        code = hsaco.read_bytes()
        # hipcc got no feature flags, so its code runs with any features.
        built = re.escape(arch.partition(":")[0])
        if re.search(rf"amdgcn-amd-amdhsa--{built}\b".encode(), code):
            return code
    source = _source()
    hiprtc = _hiprtc.load()
    flags = (*_HIP_FLAGS, f"--gpu-architecture={arch}")
    key = repr((hiprtc.version, flags)).encode() + source

    def make() -> bytes:
        _announce("hipRTC", arch)
        return hiprtc.compile(source, flags)

    return cached(arch.replace(":", "."), key, make)


def _setting(compiler: str, vendor: str) -> str:
    allowed = ("auto", compiler)
    given = _C.process_variable("kernels")
    if given not in allowed:
        raise ValueError(
            f"CGX_KERNELS={given!r} is not for {vendor}'s GPUs; allowed: {', '.join(allowed)}"
        )
    return given


def _source() -> bytes:
    try:
        return (_HERE / "_kernels.cu").read_bytes()
    except FileNotFoundError as error:
        raise RuntimeError(
            f"{error.filename} is missing: the build of torch_cgx writes it (pip, or, into the "
            "source tree, python build_kernels.py)"
        ) from error


def _compiled(arch: int) -> bytes:
    source = _source()
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
    key = repr((version, flags)).encode() + source

    def make() -> bytes:
        _announce("NVRTC", f"{kind}_{max(known)}")
        return _compile(nvrtc, source.decode(), flags, ptx=kind == "compute")

    return cached(f"{kind}_{max(known)}", key, make)


def _announce(compiler: str, arch: str) -> None:
    """Says on stderr why the process waits."""
    say(f"{compiler} compiles the kernels for {arch}, once: this takes a minute or two")


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
