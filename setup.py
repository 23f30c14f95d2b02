"""Builds the extension module torch_cgx._C against the torch that is installed; everything else is
in pyproject.toml.

Needs torch, a C++20 compiler and (for parallel, incremental builds) ninja; no CUDA, NCCL or MPI.
Object files stay in build/, so a second build compiles only what changed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import setuptools
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
TORCH_FIRST, TORCH_LAST = (2, 11), (2, 14)  # as in pyproject.toml
# No fused multiply-add: every SIMD level and the GPU must give the same bits.
FLAGS = ["-O3", "-std=c++20", "-ffp-contract=off", "-fvisibility=hidden", "-Wall", "-g0"]
SEPARATE = {"mpi", "cuda"}  # directories that are not part of this extension module

PROBE = """
#include <version>
#include <bit>
#include <concepts>
#include <cstdint>
#if __cplusplus < 202002L
#error C++20 is not on
#endif
template <std::integral T> constexpr int ones(T x) { return std::popcount(x); }
struct Point { int x; bool operator==(const Point&) const = default; };
static_assert(ones(std::uint32_t{7}) == 3 && Point{1} == Point{1});
"""


def sources() -> list[str]:
    found = (p.relative_to(ROOT) for p in (ROOT / "csrc").rglob("*.cc"))
    return sorted(str(p) for p in found if not SEPARATE & set(p.parts[:-1]))


def headers() -> list[str]:
    return sorted(str(p.relative_to(ROOT)) for p in (ROOT / "csrc").rglob("*.h"))


def check_setuptools(version: str) -> None:
    if int(version.split(".")[0]) < 77:  # reads the licence expression of pyproject.toml
        sys.exit(
            f"torch_cgx builds with setuptools 77 or newer; {version} is installed: "
            'pip install "setuptools>=77"'
        )


def check_torch(version: str) -> None:
    number = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    if not TORCH_FIRST <= number <= TORCH_LAST:
        first, last = (".".join(map(str, v)) for v in (TORCH_FIRST, TORCH_LAST))
        sys.exit(f"torch_cgx builds against torch {first} to {last}; torch {version} is installed")


def check_compiler(command: list[str]) -> None:
    try:
        probe = subprocess.run(
            [*command, "-std=c++20", "-x", "c++", "-fsyntax-only", "-"],
            input=PROBE,
            capture_output=True,
            text=True,
        )
    except OSError as error:
        sys.exit(f"torch_cgx needs a C++20 compiler, but {command[0]!r} does not start: {error}")
    if probe.returncode != 0:
        sys.exit(
            f"torch_cgx needs a C++20 compiler, and {' '.join(command)!r} is none (g++ >= 11 or "
            f"clang++ >= 14 are; choose one with the variable CXX):\n{probe.stderr}"
        )


def find_ninja() -> None:
    """Puts the interpreter's own ninja first: another version would not know these objects and
    compile all of them again, and an environment that is not activated has none in its PATH.
    """
    scripts = sysconfig.get_path("scripts")
    if (Path(scripts) / "ninja").exists():
        os.environ["PATH"] = os.pathsep.join([scripts, os.environ.get("PATH", "")])


try:
    import torch
    from torch.utils.cpp_extension import BuildExtension, CppExtension
except ImportError as error:
    cause = str(error)

    class NoTorch(build_ext):
        """Metadata and source archives can be made without torch; a build cannot."""

        def run(self) -> None:
            sys.exit(
                f"torch_cgx is built against an installed torch, and there is none here ({cause}). "
                "Install torch first, then: pip install --no-build-isolation torch_cgx (or '.', in "
                "its source)"
            )

    extension = Extension("torch_cgx._C", sources())
    command: type[build_ext] = NoTorch
else:
    find_ninja()

    class Build(BuildExtension):
        """Checks torch and the compiler first, and keeps its objects in one place whoever asks for
        the build.
        """

        def finalize_options(self) -> None:
            super().finalize_options()
            check_torch(torch.__version__)
            tag = f"{sys.implementation.cache_tag}-torch{torch.__version__}"
            # pip would give an editable build a fresh directory each time.
            self.build_temp = str(ROOT / "build" / f"temp-{tag}")

        def build_extensions(self) -> None:
            check_compiler(os.environ.get("CXX", self.compiler.compiler_cxx[0]).split())
            super().build_extensions()

    extension = CppExtension(
        "torch_cgx._C",
        sources(),
        include_dirs=[str(ROOT / "csrc")],
        depends=headers(),
        extra_compile_args=FLAGS,
        extra_link_args=["-pthread", "-lrt"] if sys.platform.startswith("linux") else [],
    )
    command = Build

check_setuptools(setuptools.__version__)
setup(ext_modules=[extension], cmdclass={"build_ext": command})
