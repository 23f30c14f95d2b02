"""The build backend finds the installed torch where the build is isolated from it."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import setuptools

from tests.distributed import ROOT

SCRIPT = """
import importlib.util, sys
assert importlib.util.find_spec("torch") is None, "not isolated"
import build_backend
assert importlib.util.find_spec("torch") is not None
import setuptools
print(setuptools.__file__)
print(sys.path[-1])
"""


def test_torch_is_found_behind_the_requirements_of_an_isolated_build(tmp_path):
    """As pip isolates a build: no site-packages, and the requirements in a folder of their own."""
    for name in ("setuptools", "_distutils_hack"):
        source = Path(setuptools.__file__).resolve().parent.parent / name
        (tmp_path / name).symlink_to(source)
    (tmp_path / "sitecustomize.py").write_text(
        "import sys; sys.path[:] = [p for p in sys.path if not p.endswith('site-packages')]"
    )
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    used, last = done.stdout.split()
    assert Path(used).parent.parent == tmp_path  # not the one of the environment
    assert last in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
