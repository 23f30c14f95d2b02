"""Builds the GPU kernels of csrc/codec/gpu for setup.py: their source as one file, for compilers
at run time, and, where there is an nvcc, a fatbin.

nvcc is $CUDA_HOME/bin/nvcc if CUDA_HOME is set, else the nvcc on the PATH. CGX_CUDA_ARCHS chooses
the architectures, each of which takes nvcc most of a minute:

    80+PTX;90  machine code for both, and for 80 PTX, which newer GPUs compile when they load it
    all        the architectures in the wheels (DEFAULT_ARCHS)
    0          none: no fatbin is built
    not set    the architectures of the GPUs in this machine
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent
SOURCE = "codec/gpu/codec.cu"
HSACO = ROOT / "torch_cgx/_kernels.hsaco"  # of `make kernels-hip`, and packed if it is there
HIP_WORK = ROOT / "build/kernels-hip"
FILES = ("_kernels.cu", "_kernels.fatbin", HSACO.name)
DEFAULT_ARCHS = (80, 90, 100)
# No fused multiply-add: the bits equal the CPU's. The rest of IEEE arithmetic is the default.
FLAGS = ["-std=c++17", "-O3", "--fmad=false"]
# As above, but in clang fusing is the default, and versions differ in the other two.
HIP_FLAGS = [
    *("-std=c++17", "-O3", "-ffp-contract=off", "-fno-gpu-flush-denormals-to-zero"),
    "-fhip-fp32-correctly-rounded-divide-sqrt",
]


# Where there is an nvcc, too, hipcc would call that.
ENVIRONMENT = {**os.environ, "HIP_PLATFORM": "amd"}


class NvccError(Exception):
    """An nvcc that cannot be used, with its output."""


class Arch(NamedTuple):
    number: int  # 10 * major + minor
    ptx: bool

    def __str__(self) -> str:
        return f"{self.number}{'+PTX' if self.ptx else ''}"


def one_file() -> str:
    """The kernels with the project's headers in place of their includes, and without what stands in
    `#if !defined(CGX_DEVICE_COMPILER)`: that is for the host.
    """
    lines = _inlined(SOURCE, set())
    return "// Made by build_kernels.py from csrc/codec/gpu.\n" + "\n".join(lines) + "\n"


def _inlined(name: str, seen: set[str]) -> list[str]:
    out = [f'#line 1 "csrc/{name}"']
    seen.add(name)
    depth = 0  # of #if, inside a block for the host
    for number, line in enumerate((ROOT / "csrc" / name).read_text().splitlines(), 1):
        if depth or line == "#if !defined(CGX_DEVICE_COMPILER)":
            depth += line.startswith("#if") - line.startswith("#endif")
            if depth == 1 and line.startswith(("#else", "#elif")):
                raise ValueError(f"{name}:{number}: a block for the host has no {line}")
            out.append("")
        elif included := re.match(r'#include "(.*)"', line):
            if included[1] not in seen:
                out += _inlined(included[1], seen)
                out.append(f'#line {number + 1} "csrc/{name}"')
            else:
                out.append("")
        else:
            out.append("" if line == "#pragma once" else line)
    return out


def run(command: list[str]) -> str:
    """Standard output and standard error together."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT
        )
    except OSError as error:
        raise NvccError(f"{command[0]!r} does not start: {error}") from error
    if done.returncode != 0:
        raise NvccError(f"{shlex.join(command)!r} failed:\n{done.stdout}".rstrip())
    return done.stdout


def find_nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME", "").strip()
    if home:
        found = Path(home) / "bin/nvcc"
        if found.exists():
            return str(found)
    return shutil.which("nvcc")


def default_archs(known: Iterable[int] = DEFAULT_ARCHS) -> list[Arch]:
    """Of the wheels, as far as they are known; PTX of the oldest."""
    numbers = [number for number in DEFAULT_ARCHS if number in known]
    return [Arch(number, number == numbers[0]) for number in numbers]


def archs_in_sight() -> list[int]:
    """Of the GPUs in this machine, each once. Empty: there is no GPU, or no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    value, found = ctypes.c_int(), []
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(value)) != 0:
        return []
    for device in range(value.value):
        parts = []
        for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
            if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device) != 0:
                return []
            parts.append(value.value)
        found.append(10 * parts[0] + parts[1])
    return list(dict.fromkeys(found))


def wanted_archs() -> list[Arch] | None:
    """The architectures of CGX_CUDA_ARCHS, each once; [] for 0. None: it is not set."""
    text = os.environ.get("CGX_CUDA_ARCHS", "").strip()
    if not text:
        return None
    if text.lower() == "all":
        return default_archs()
    if text == "0":
        return []
    archs = []
    for word in filter(None, re.split(r"[;,\s]+", text)):
        found = re.fullmatch(r"([1-9]\d{1,2})(\+PTX)?", word, re.IGNORECASE)
        if found is None:
            sys.exit(
                f"CGX_CUDA_ARCHS is {text!r}, in which {word!r} is no architecture; allowed: "
                "numbers like 80, or 80+PTX to add PTX, separated by ; or ,; all (the "
                "architectures in the wheels); 0 (no kernels are built)"
            )
        archs.append(Arch(int(found[1]), found[2] is not None))
    if not archs:
        sys.exit(f"CGX_CUDA_ARCHS is {text!r}, allowed: architectures as 80;90+PTX, or 0")
    return list(dict.fromkeys(archs))


def known_archs(nvcc: str) -> list[int]:
    known = re.findall(r"^sm_(\d+)$", run([nvcc, "--list-gpu-code"]), re.MULTILINE)
    if not known:
        raise NvccError(f"{nvcc!r} --list-gpu-code names no architecture")
    return [int(number) for number in known]


def choose_archs(nvcc: str) -> list[Arch]:
    """Returns the architectures that CGX_CUDA_ARCHS names. If it is not set, finds the GPUs of this
    machine and returns their architectures. A GPU newer than this nvcc gets PTX for the newest
    architecture that nvcc knows. The list is empty if nothing was requested and there is no GPU.
    Raises NvccError if nvcc does not know a requested architecture, or knows none that runs on a
    GPU here.
    """
    known = known_archs(nvcc)
    wanted = wanted_archs()
    if wanted is not None:
        unknown = [f"sm_{arch.number}" for arch in wanted if arch.number not in known]
        if unknown:
            allowed = ", ".join(map(str, sorted(known)))
            raise NvccError(f"{nvcc!r} does not know {', '.join(unknown)}; it knows {allowed}")
        return wanted
    archs = []
    for number in archs_in_sight():
        usable = max((one for one in known if one <= number), default=None)
        if usable is None:
            raise NvccError(f"{nvcc!r} knows nothing that runs on the GPU here, sm_{number}")
        archs.append(Arch(usable, usable != number))
    return list(dict.fromkeys(archs))


def fatbin_command(nvcc: str, archs: list[Arch], source: Path) -> list[str]:
    """The command that compiles `source`, without the name of the output."""
    command = [nvcc, *FLAGS, "-fatbin"]
    for number, ptx in archs:
        kinds = f"[sm_{number},compute_{number}]" if ptx else f"sm_{number}"
        command += ["-gencode", f"arch=compute_{number},code={kinds}"]
    return [*command, str(source)]


def write_source(work: Path) -> Path:
    """_kernels.cu in the folder `work`; untouched if nothing has changed."""
    path = work / "_kernels.cu"
    text = one_file()
    if not path.exists() or path.read_text() != text:
        work.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return path


def build_fatbin(nvcc: str, archs: list[Arch], source: Path) -> Path:
    """Beside its source; made again only if something that it depends on has changed."""
    command = fatbin_command(nvcc, archs, source)
    fatbin, stamp = source.with_suffix(".fatbin"), source.with_suffix(".txt")
    compiler = Path(nvcc).stat()
    text = hashlib.sha256(source.read_bytes()).hexdigest()
    named = shlex.join(fatbin_command(nvcc, archs, Path(source.name)))  # the same in a copied tree
    stamped = f"{named}\n{text} {compiler.st_size} {compiler.st_mtime_ns}\n"
    if fatbin.exists() and stamp.exists() and stamp.read_text() == stamped:
        return fatbin
    run([*command, "-o", str(fatbin)])
    stamp.write_text(stamped)
    return fatbin


def build(work: Path) -> dict[str, Path]:
    """Files of the package, by name. An nvcc that cannot build them is a warning, or the end if
    CGX_CUDA_ARCHS asks for something.
    """
    built = {"_kernels.cu": write_source(work)}
    if hsaco := hip_image():
        built[HSACO.name] = hsaco
    asked = wanted_archs()
    later = "CuPy's NVRTC compiles them on first use"
    if asked == []:
        print(f"torch_cgx: built without GPU kernels (CGX_CUDA_ARCHS=0); {later}")
        return built
    nvcc = find_nvcc()
    try:
        if nvcc is None:
            if asked is None:
                print(f"torch_cgx: built without GPU kernels (no nvcc found); {later}")
                return built
            raise NvccError("there is no nvcc in CUDA_HOME or on the PATH")
        archs = choose_archs(nvcc)
        if not archs:
            print(
                "torch_cgx: built without GPU kernels (no GPU in this machine; CGX_CUDA_ARCHS=all "
                f"builds the kernels that the wheels have); {later}"
            )
            return built
        built["_kernels.fatbin"] = build_fatbin(nvcc, archs, built["_kernels.cu"])
        print(f"torch_cgx: GPU kernels for {', '.join(map(str, archs))} ({nvcc})")
    except NvccError as error:
        if asked is not None:
            sys.exit(f"CGX_CUDA_ARCHS: {error}")
        print(f"warning: torch_cgx is built without GPU kernels; {later}: {error}", file=sys.stderr)
    return built


def hip_image() -> Path | None:
    """torch_cgx/_kernels.hsaco, if it was made from this source: another has other structures."""
    stamp = HIP_WORK / "hsaco.txt"
    if not HSACO.exists():
        return None
    if stamp.exists() and stamp.read_text() == one_file():
        return HSACO
    print(
        f"warning: {HSACO.name} was made from another source and is left out: make kernels-hip",
        file=sys.stderr,
    )
    return None


def hip(argv: list[str]) -> None:
    """`python build_kernels.py hip HIPCC ARCHS`: torch_cgx/_kernels.hsaco, for AMD's GPUs."""
    hipcc, archs = argv
    source = write_source(HIP_WORK)
    targets = [f"--offload-arch={arch}" for arch in re.split(r"[;,\s]+", archs)]
    command = [hipcc, *HIP_FLAGS, *targets, "--genco", "-Wall", "-Werror"]
    try:
        sys.stdout.write(run([*command, "-x", "hip", str(source), "-o", str(HSACO)]))
    except NvccError as error:
        sys.exit(f"make kernels-hip: {error}")
    (HIP_WORK / "hsaco.txt").write_text(source.read_text())
    print(f"torch_cgx: {HSACO.relative_to(ROOT)} for {archs} ({hipcc})")


def main(argv: list[str]) -> None:
    if argv and argv[0] == "hip" and len(argv) == 3:
        hip(argv[1:])
    elif not argv:
        for name, path in build(ROOT / "build/kernels").items():
            if path != HSACO:
                shutil.copy2(path, HSACO.with_name(name))
    else:
        sys.exit(f"{__doc__}\n{hip.__doc__}\n`python build_kernels.py`: the rest, for CUDA.")


if __name__ == "__main__":
    main(sys.argv[1:])
