"""Builds the extension module torch_cgx._C against the torch that is installed; everything else is
in pyproject.toml.

Needs torch, a C++20 compiler and ninja; no CUDA, NCCL or MPI. Which compiler and flags: CXX,
CFLAGS, CPPFLAGS, CXXFLAGS, LDFLAGS; how many at once: MAX_JOBS. Object files stay in build/, so a
second build compiles only what changed (build_engine.py).

Where there is an mpicc, also a small module for its MPI library (build_mpi.py); where there is an
nvcc, also the kernels for GPUs (build_kernels.py).

With CGX_TESTING=1, also tests._machinery, the module of tests/machinery, if the build is in place
or editable: no wheel holds it.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import setuptools
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
# A build by pip does not look for modules here.
sys.path.insert(0, str(ROOT))
import build_engine  # noqa: E402
import build_kernels  # noqa: E402
import build_mpi  # noqa: E402

del sys.path[0]

TORCH_FIRST, TORCH_LAST = (2, 11), (2, 14)  # as in pyproject.toml
# No fused multiply-add: every SIMD level and the GPU must give the same bits.
FLAGS = ["-O3", "-std=c++20", "-ffp-contract=off", "-fvisibility=hidden", "-Wall", "-g0"]
LINK = ["-pthread", "-lrt"] if sys.platform.startswith("linux") else []
SEPARATE = {"module"}  # directories that are not part of this extension module

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


def not_option(word: str) -> bool:
    """For commands whose compiler may be several words ("ccache g++")."""
    return not word.startswith("-")


def put(built: Path, target: Path) -> None:
    """A copy. What was there goes first: a process may be running it."""
    if target.exists() and built.samefile(target):
        return
    target.unlink(missing_ok=True)
    shutil.copy2(built, target)


def testing() -> bool:
    """True if the module of the tests' machinery is built, too."""
    wanted = os.environ.get("CGX_TESTING", "")
    if wanted not in ("", "0", "1"):
        sys.exit(f"CGX_TESTING is {wanted!r}, allowed: 0, 1 (builds the module of tests/machinery)")
    return wanted == "1"


# Where torch's headers are included.
TORCH_ROOMS = ("csrc/backend/", "csrc/bindings/", "csrc/comm/gloo/", "csrc/comm/nccl/")


def machinery_sources() -> list[str]:
    """Its own ones, and a copy of the core (csrc/ without TORCH_ROOMS)."""
    own = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests/machinery").glob("*.cc"))
    core = [s for s in sources() if not s.startswith(TORCH_ROOMS)]
    return [*own, *core, "csrc/backend/adapters/exceptions.cc", "csrc/bindings/mpi.cc"]


def headers() -> list[str]:
    return sorted(str(p.relative_to(ROOT)) for p in (ROOT / "csrc").rglob("*.h"))


def check_setuptools(version: str) -> None:
    if int(version.split(".")[0]) < 77:  # reads the licence expression of pyproject.toml
        sys.exit(
            f"torch_cgx builds with setuptools 77 or newer; {version} is installed: "
            'pip install "setuptools>=77"'
        )


def version_of(compiler: list[str]) -> str:
    return subprocess.run([*compiler, "--version"], capture_output=True, text=True).stdout


def check_torch(version: str) -> None:
    number = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    if not TORCH_FIRST <= number <= TORCH_LAST:
        first, last = (".".join(map(str, v)) for v in (TORCH_FIRST, TORCH_LAST))
        sys.exit(f"torch_cgx builds against torch {first} to {last}; torch {version} is installed")


def no_torch(cause: str, site_packages: str) -> str:
    """The error if torch cannot be imported, with the remedy. `site_packages`: of the interpreter,
    without the folders that an isolated build puts in front of it.
    """
    install = "pip install torch_cgx (or '.', in its source)"
    if (Path(site_packages) / "torch").is_dir():
        return (
            f"torch is installed in {site_packages}, but this build cannot import it ({cause}). "
            f"Where the build's isolated environment is the reason, type: {install} "
            "--no-build-isolation"
        )
    return (
        f"torch_cgx is built against the torch that it will run with, and there is none in "
        f"{site_packages} ({cause}). Install torch first, then type: {install}"
    )


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


try:
    import torch
    from torch.utils.cpp_extension import BuildExtension, CppExtension
except ImportError as error:
    cause = str(error)

    class NoTorch(build_ext):
        """Metadata and source archives can be made without torch; a build cannot."""

        def run(self) -> None:
            sys.exit(no_torch(cause, sysconfig.get_path("purelib")))

    extension = Extension("torch_cgx._C", sources())
    command: type[build_ext] = NoTorch
else:

    class Build(BuildExtension):
        """Checks torch and the compiler first, takes flags and libraries from torch, and keeps its
        objects in one place for every command that builds.
        """

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options, use_ninja=False)  # torch's own use of it

        def finalize_options(self) -> None:
            super().finalize_options()
            check_torch(torch.__version__)
            # pip would give an editable build a fresh directory each time.
            self.build_temp = str(ROOT / "build" / f"temp-{sys.implementation.cache_tag}")

        def build_extensions(self) -> None:
            check_compiler(self.compiler_command())
            super().build_extensions()  # torch's: adds its flags, then calls build_extension()

        def build_extension(self, ext: Extension) -> None:
            modules = [build_engine.Module("_C", ext.sources, self.libraries_of(ext))]
            if self.testing:  # it needs none of torch's libraries
                modules.append(build_engine.Module("_machinery", machinery_sources(), LINK))
            tag = f"torch{torch.__version__}"
            work = Path(self.build_temp)
            self.built = build_engine.build(work, tag, self.tools_of(ext), modules)
            target = Path(self.get_ext_fullpath(ext.name))
            target.parent.mkdir(parents=True, exist_ok=True)
            put(self.built["_C"], target)

        def compiler_command(self) -> list[str]:
            named = shlex.split(os.environ.get("CXX", ""))
            return named or [*itertools.takewhile(not_option, self.compiler.compiler_cxx)]

        def tools_of(self, ext: Extension) -> build_engine.Tools:
            asked = [*itertools.dropwhile(not_option, self.compiler.compiler_so)]
            asked += [*shlex.split(os.environ.get("CXXFLAGS", "")), *FLAGS]
            core, python, others = [], [], []  # of the flags that torch has added
            for flag in ext.extra_compile_args:
                if flag.startswith("-D_GLIBCXX"):
                    core.append(flag)
                elif flag.startswith("-DPYBIND11"):
                    python.append(flag)
                elif not flag.startswith("-DTORCH_EXTENSION_NAME"):
                    others.append(flag)
            # As headers of the system, so that the compiler does not warn about them.
            headers = [word for path in ext.include_dirs for word in ("-isystem", path)]
            # An environment's own folder is not there, or has no header but in its folder "site".
            own = [path for path in self.include_dirs if any(Path(path).glob("*.h"))]
            headers += [f"-I{path}" for path in own]
            # Assertions of torch's headers name their files: not where they are on this machine.
            folder = Path(os.path.abspath(torch.__file__)).parents[1]  # as in include_dirs
            others.append(f"-fmacro-prefix-map={folder}/=")
            flags = {"core": [*asked, *core]}
            # -O3 is for loops over values, which are the core's: elsewhere it saves no time.
            flags["python"] = [*flags["core"], "-O2", *headers, *python]
            flags["torch"] = [*flags["python"], *others]
            compiler = self.compiler_command()
            if "clang" not in version_of(compiler):  # g++ warns about functions of torch's headers
                flags["torch"].append("-Wno-maybe-uninitialized")
            linker = [*itertools.dropwhile(not_option, self.compiler.linker_so_cxx)]
            return build_engine.Tools(compiler, flags, [*compiler, *linker])

        def libraries_of(self, ext: Extension) -> list[str]:
            folders = [f"-L{folder}" for folder in (*ext.library_dirs, *self.library_dirs)]
            names = [f"-l{name}" for name in self.get_libraries(ext)]
            return [*folders, *names, *ext.extra_link_args]

        def run(self) -> None:
            # The MPI modules come first: they take a second, so a broken mpicc is reported at once.
            built = build_mpi.build(Path(self.build_temp) / "mpi")
            build_kernels.wanted_archs()  # reports a bad CGX_CUDA_ARCHS at once, too
            self.testing = testing() and self.inplace
            with ThreadPoolExecutor(1) as beside:
                kernels = beside.submit(build_kernels.build, Path(self.build_temp) / "kernels")
                super().run()
            if self.inplace:
                # The module of an earlier build would not fit the new extension.
                machinery = Path(self.get_ext_fullpath("tests._machinery"))
                machinery.unlink(missing_ok=True)
                if self.testing:
                    put(self.built["_machinery"], machinery)
            self.more_outputs: list[str] = []
            for kind in build_mpi.KINDS:
                target = Path(self.get_ext_fullpath(f"torch_cgx._mpi_{kind}"))
                # In the source tree the modules of earlier builds stay.
                stays = self.inplace and os.environ.get("CGX_MPI") != "0"
                self.put(built.get(kind), target, stays)
            beside_engine = Path(self.get_ext_fullpath("torch_cgx._C"))
            for name in build_kernels.FILES:
                target = beside_engine.with_name(name)
                self.put(kernels.result().get(name), target, stays=False)
            record = Path(self.build_temp) / f"_build_info.{sys.implementation.cache_tag}.json"
            record.write_text(json.dumps(self.record(built, kernels.result()), indent=2) + "\n")
            self.put(record, beside_engine.with_name(record.name), stays=False)

        def record(self, mpi: dict[str, Path], kernels: dict[str, Path]) -> dict[str, Any]:
            """For torch_cgx/_build_info.py."""
            compiler = self.compiler_command()
            # Wheels of `make wheels` name their torch behind the version: 0.1.0+torch2.13.
            version, _, wheel = self.distribution.get_version().partition("+")
            return {
                "version": version,
                "wheel": wheel,
                "torch": torch.__version__,
                "cxx11_abi": bool(torch._C._GLIBCXX_USE_CXX11_ABI),
                "compiler": version_of(compiler).partition("\n")[0],
                "mpi": sorted(mpi),
                "kernels": sorted(kernels),
            }

        def put(self, built: Path | None, target: Path, stays: bool) -> None:
            """Puts a built file into its place, or removes the file of an earlier build."""
            if built is not None:
                put(built, target)
                self.more_outputs.append(str(target))
            elif not stays:
                target.unlink(missing_ok=True)

        def get_outputs(self) -> list[str]:
            return [*super().get_outputs(), *getattr(self, "more_outputs", [])]

    extension = CppExtension("torch_cgx._C", sources(), depends=headers(), extra_link_args=LINK)
    command = Build

check_setuptools(setuptools.__version__)
setup(ext_modules=[extension], cmdclass={"build_ext": command})
