"""Importing: what `import torch` costs with the package installed, and that the engine stays out
until it is needed.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import statistics
import subprocess
import sys

import pytest

from tests.distributed import ROOT, run_pooled

LIMIT_SECONDS = 0.005


def _python(code, autoload="1", **env):
    settings = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload,
        **env,
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=settings,
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# What torch does at its import for a package like this one: it looks for entry points, whoever has
# any, and calls them. The whole import is not timed: torch's own second varies by more than the
# limit.
_TIME_OF_REGISTRATION = """
import sys, time, torch
from importlib.metadata import entry_points
entry_points(group="torch.backends")
start = time.process_time()
entry_points(group="torch.backends")
looking = time.process_time() - start
assert "torch_cgx" not in sys.modules
start = time.process_time()
torch._import_device_backends()
print(time.process_time() - start - looking, looking)
assert "torch_cgx" in sys.modules
"""


def test_registration_takes_less_than_5_ms():
    runs = [_python(_TIME_OF_REGISTRATION, autoload="0").split() for _ in range(3)]
    times = [float(added) for added, _ in runs]
    assert statistics.median(times) < LIMIT_SECONDS, runs


def test_entry_point_is_installed():
    points = importlib.metadata.entry_points(group="torch.backends")
    assert "torch_cgx" in points.names, "the package is not installed: make build"


_ORDERS = [("torch", "0"), ("torch", "1"), ("torch_cgx", "0"), ("torch_cgx", "1")]
_ORDERS += [("torch_cgx._autoload", "0"), ("cgx_utils", "1")]


@pytest.mark.parametrize("first, autoload", _ORDERS)
def test_any_order_of_imports_registers_once(first, autoload):
    code = f"""
import {first}
import sys, torch
import torch.distributed as dist
print("torch_cgx" in sys.modules, "cgx" in dist.Backend.backend_list)
import torch_cgx
assert torch_cgx.__version__
torch_cgx._autoload.register()
print(dist.Backend.backend_list.count("cgx"), dist.Backend.backend_capability["cgx"],
      "torch_cgx._C" in sys.modules)
default = dist.Backend.default_device_backend_map
print(default["cpu"], default["cuda"], "c" in default)
"""
    loaded = first != "torch" or autoload == "1"
    registered, once, defaults = _python(code, autoload=autoload).splitlines()
    assert registered == f"{loaded} {loaded}"
    assert once == "1 ['cpu', 'cuda'] False"
    assert defaults == "gloo nccl False"


def test_without_torch_distributed_nothing_happens():
    code = """
import torch
import torch.distributed as dist
dist.is_available = lambda: False
before = list(dist.Backend.backend_list)
import torch_cgx
assert dist.Backend.backend_list == before
print("fine")
"""
    assert _python(code, autoload="0") == "fine"


def test_engine_is_loaded_by_the_first_group():
    code = """
import sys, torch, torch_cgx
import torch.distributed as dist
before = "torch_cgx._C" in sys.modules
dist.init_process_group("cgx", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(3)
dist.all_reduce(x)
print(before, "torch_cgx._C" in sys.modules, x.tolist())
dist.destroy_process_group()
"""
    assert _python(code) == "False True [1.0, 1.0, 1.0]"


def test_versions_agree():
    import torch_cgx
    from torch_cgx import _C

    text = (ROOT / "pyproject.toml").read_text()
    version = re.search(r'^version = "(.*)"$', text, re.MULTILINE)
    assert version is not None
    assert torch_cgx.__version__ == version[1] == _C.__version__
    assert importlib.metadata.version("torch_cgx") == version[1]


def test_public_names_are_there():
    import torch_cgx

    for name in torch_cgx.__all__:
        assert getattr(torch_cgx, name) is not None
        assert name in dir(torch_cgx)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = torch_cgx.no_such_name
    assert issubclass(torch_cgx.TimeoutError, (torch_cgx.CgxError, TimeoutError))
    assert issubclass(torch_cgx.PeerLostError, torch_cgx.CgxError)


def _wrong_options(rank, world_size):
    import torch.distributed as dist

    import torch_cgx  # noqa: F401

    dist.init_process_group(
        "cgx", store=dist.HashStore(), rank=0, world_size=1, pg_options={"bits": 4}
    )


def test_options_of_another_type_are_refused():
    outcome = run_pooled(_wrong_options, 1, backend=None, check=False)[0]
    assert "TypeError" in outcome.error and "dict" in outcome.error
    assert "torch_cgx.Options" in outcome.error


def test_a_script_beside_a_folder_of_the_same_name_gets_the_package(tmp_path):
    # As one does that lies beside a clone: to Python, any folder is a package without attributes.
    (tmp_path / "torch_cgx").mkdir()
    script = tmp_path / "script.py"
    script.write_text("import torch_cgx; print(torch_cgx.PeerLostError.__name__)")
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, str(script)], env=settings, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "PeerLostError", done.stderr
