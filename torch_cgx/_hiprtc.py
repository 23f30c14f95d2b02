"""hipRTC, the compiler of AMD's runtime, over ctypes. It needs no GPU."""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from typing import Any

# A library of its own; in older versions and in Debian's, a part of the runtime.
_FILES = [
    f"{name}.so{number}"
    for name in ("libhiprtc", "libamdhip64")
    for number in ("", ".7", ".6", ".5")
]
_ARGUMENTS: dict[str, list[Any]] = {
    "hiprtcVersion": [c_void_p, c_void_p],
    "hiprtcCreateProgram": [c_void_p, c_char_p, c_char_p, c_int, c_void_p, c_void_p],
    "hiprtcCompileProgram": [c_void_p, c_int, c_void_p],
    "hiprtcGetProgramLogSize": [c_void_p, c_void_p],
    "hiprtcGetProgramLog": [c_void_p, c_void_p],
    "hiprtcGetCodeSize": [c_void_p, c_void_p],
    "hiprtcGetCode": [c_void_p, c_void_p],
    "hiprtcDestroyProgram": [c_void_p],
}


class Hiprtc:
    """The hipRTC functions of one library; `version` is (major, minor), `file` its name."""

    def __init__(self, library: ctypes.CDLL, file: str) -> None:
        """AttributeError: the library lacks one of the functions."""
        self._library = library
        self.file = file
        for name, arguments in _ARGUMENTS.items():
            getattr(library, name).argtypes = arguments
        library.hiprtcGetErrorString.restype = c_char_p
        major, minor = c_int(), c_int()
        self._call("hiprtcVersion", byref(major), byref(minor))
        self.version = major.value, minor.value

    def compile(self, source: bytes, flags: tuple[str, ...]) -> bytes:
        """The code object of a program in HIP. RuntimeError: the compiler's log."""
        program = c_void_p()
        self._call("hiprtcCreateProgram", byref(program), source, b"_kernels.cu", 0, None, None)
        try:
            options = (c_char_p * len(flags))(*(flag.encode() for flag in flags))
            try:
                self._call("hiprtcCompileProgram", program, len(flags), options)
            except RuntimeError as error:
                log = self._text(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
                raise RuntimeError(f"hipRTC with {' '.join(flags)}: {error}\n{log}") from error
            return self._text(program, "Code")
        finally:
            self._library.hiprtcDestroyProgram(byref(program))

    def _text(self, program: c_void_p, what: str) -> bytes:
        size = c_size_t()
        self._call(f"hiprtcGet{what}Size", program, byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._call(f"hiprtcGet{what}", program, text)
        return text.raw

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self._library, name)(*arguments)
        if result != 0:
            said = self._library.hiprtcGetErrorString(result).decode()
            raise RuntimeError(f"{name} of {self.file} failed with {result} ({said})")


def load() -> Hiprtc:
    """The hipRTC of this process or host. RuntimeError, with how to install it, if none loads."""
    # A library that the process has loaded (torch brings its own) comes first, as for the driver.
    for mode in (os.RTLD_NOW | os.RTLD_NOLOAD, os.RTLD_NOW):
        for file in _FILES:
            try:
                return Hiprtc(ctypes.CDLL(file, mode=mode), file)
            except (OSError, AttributeError):
                continue  # missing, or a version whose runtime does not include hipRTC
    raise RuntimeError(
        "torch_cgx has no kernels for this AMD GPU, and hipRTC, which could compile them now, "
        "does not load (libhiprtc.so, or libamdhip64.so of older versions). Either install ROCm's "
        "hipRTC, or, in torch_cgx's source, `make kernels-hip HIP_ARCHS=...` (it needs hipcc), "
        "then install"
    )
