"""A CUDA device for the CPU build of torch, on the stub driver, for tests.

    from tests.device import fake_cuda

    pytestmark = fake_cuda.needed                     # skips where it is not available

    def job(rank, world_size):                        # in a process that has loaded the device
        x = torch.full((8,), float(rank), device="cuda")
        dist.all_reduce(x)
        return x.tolist()

    def test_sum():
        assert fake_cuda.run(job, 2) == [[1.0] * 8] * 2

torch's own interface works there: `device="cuda"`, `.to()`, autograd, `torch.Stream(device="cuda")`
and `torch.Event`, `with stream:`, `tensor.record_stream()`, `torch.accelerator`, and the functions
of `torch.cuda` that `load` replaces. Not there: `torch.cuda.Stream`, `torch.cuda.stream()`,
generators (random tensors come from the CPU's), graphs. Gloo carries its tensors.

A process has it only if `load()` ran before torch was imported; `run` sees to that. The functions
below `load` are for such a process. What streams do: see fake_cuda.cc.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import ctypes
import fcntl
import hashlib
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from tests.distributed import ROOT, RankPool

if TYPE_CHECKING:
    import torch

HERE = ROOT / "tests" / "device"
BUILD = ROOT / "build" / "fake-cuda"
STUB = BUILD / "libcuda.so.1"
MODULE = BUILD / "_fake_cuda.so"
NCCL = BUILD / "_fake_nccl.so"
CXX = os.environ.get("CXX", "g++")


def missing() -> str | None:
    """Why there can be no fake device here; None where there can."""
    version = runpy.run_path(str(_torch_folder() / "version.py"))  # without importing torch
    if version.get("cuda") or version.get("hip"):
        return "the fake CUDA device needs a torch built for the CPU alone"
    if shutil.which(CXX) is None:
        return f"the fake CUDA device needs a C++ compiler ({CXX}; CXX= takes another)"
    return None


# ---- in the parent ----


def build() -> None:
    """Compiles the stub driver and the device (some 30 s) into build/fake-cuda, unless they are
    there. Processes may call it at the same time.
    """
    torch = _torch_folder()
    flags = ["-std=c++20", "-Wall", "-fPIC", "-shared"]
    BUILD.mkdir(parents=True, exist_ok=True)
    with open(BUILD / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stub = (
            STUB,
            [
                HERE / "stub_driver.cc",
                *sorted(HERE.glob("stub_*.h")),
                HERE / "host_kernels.h",
                *sorted((ROOT / "csrc").rglob("*.h")),
            ],
            [*flags, "-O2", "-ffp-contract=off", f"-I{ROOT / 'csrc'}"],
            # By its name a later dlopen("libcuda.so.1") finds the one that is loaded.
            ["-Wl,-soname,libcuda.so.1", "-pthread"],
        )
        includes = [torch / "include", torch / "include/torch/csrc/api/include"]
        headers = sorted(HERE.glob("*.h"))
        libraries = ["-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python"]
        modules = [
            (
                module,
                [(HERE / module.stem.removeprefix("_")).with_suffix(".cc"), *headers],
                # Not optimised: it compiles in a third of the time.
                [*flags, "-O0", *(f"-isystem{path}" for path in [*includes, _python_include()])],
                [f"-L{torch / 'lib'}", *libraries, f"-Wl,-rpath,{torch / 'lib'}"],
            )
            for module in (MODULE, NCCL)
        ]
        # Side by side: all tests of the device wait for them.
        with concurrent.futures.ThreadPoolExecutor() as pool:
            list(pool.map(lambda one: _compile(*one), [*modules, stub]))


def environment(**settings: str) -> dict[str, str]:
    """What a process that shall have the device needs in its environment, beside `settings`
    (STUB_DRIVER_DELAY_US="5000", say). Compiles what is not there.
    """
    build()
    paths = [str(BUILD), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    # What CUDA calls undefined ends the process.
    return {"LD_LIBRARY_PATH": os.pathsep.join(paths), "STUB_DRIVER_STRICT": "1", **settings}


_pool: RankPool | None = None
# Of a worker, or of a warm start, before it imports torch.
PRELUDE = "from tests.device import fake_cuda; fake_cuda.load()"


def run(fn: Callable[..., Any], world_size: int, *args: Any, **options: Any) -> list[Any]:
    """As `tests.distributed.run_pooled`, in worker processes that have the device. Streams, cached
    memory and counts of a worker outlive a call.
    """
    global _pool
    if _pool is None:
        _pool = RankPool(environment(), PRELUDE)
        atexit.register(_pool.close)
    return _pool.run(fn, world_size, *args, **options)


def run_fresh(fn: Callable[..., Any], world_size: int, *args: Any, **options: Any) -> list[Any]:
    """As `run`, in processes that are started for this call; `env` (one dict for all) is there from
    the start.
    """
    pool = RankPool(environment(**options.get("env", {})), PRELUDE)
    try:
        return pool.run(fn, world_size, *args, **options)
    finally:
        pool.close()


def _torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")  # does not import it
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


needed = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def _python_include() -> str:
    return sysconfig.get_paths()["include"]


def _compile(target: Path, sources: list[Path], before: list[str], after: list[str]) -> None:
    command = [CXX, *before, str(sources[0]), "-o", f"{target}.new", *after]
    digest = hashlib.sha256(repr([command, importlib.metadata.version("torch")]).encode())
    for source in sources:
        digest.update(source.read_bytes())
    stamp = target.with_suffix(".sha256")
    if target.exists() and stamp.exists() and stamp.read_text() == digest.hexdigest():
        return
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    os.replace(f"{target}.new", target)
    stamp.write_text(digest.hexdigest())


# ---- in a process that has the device ----

_module: Any = None
_nccl: Any = None


def load() -> ModuleType:
    """Gives this process the device, once. RuntimeError where torch is already imported (it looks
    for CUDA only once), or where libcuda.so.1 is another driver.
    """
    global _module
    if _module is not None:
        return _module
    if "torch" in sys.modules:
        raise RuntimeError("fake_cuda.load() has to run before torch is imported")
    if not STUB.exists() or not MODULE.exists():
        raise RuntimeError("start this process with fake_cuda.environment(), which compiles")
    _check_driver()
    _module = module = _import(MODULE)
    _patch_torch(module)
    _patch_kernels()
    # A task that runs while the process takes its libraries down may crash.
    atexit.register(module.settle, 1000)
    return module


def _import(path: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(path.stem, str(path))
    spec = importlib.util.spec_from_file_location(path.stem, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@contextlib.contextmanager
def nccl() -> Iterator[None]:
    """Groups of cgx that are made inside find a torch with NCCL: a backend that treats streams as
    NCCL does (fake_nccl.cc).
    """
    import torch.distributed as dist

    from torch_cgx import _backend

    global _nccl
    _nccl = _nccl or _import(NCCL)
    fake = _nccl.FakeNccl
    before = dist.is_nccl_available, _backend.make_nccl

    def make(store: Any, rank: int, size: int, timeout: Any) -> Any:
        return fake(dist.ProcessGroupGloo(store, rank, size, timeout))

    dist.is_nccl_available = lambda: True
    _backend.make_nccl = make
    try:
        yield
    finally:
        dist.is_nccl_available, _backend.make_nccl = before


def fail_nccl_once() -> None:
    """The next call of a backend of `nccl` throws what NCCL's own errors are."""
    _nccl.fail_once()


def unclosed_nccl() -> int:
    """Backends of `nccl` that were destroyed without shutdown() or abort()."""
    return int(_nccl.unclosed())


def _check_driver() -> None:
    ctypes.CDLL(str(STUB))
    if not hasattr(ctypes.CDLL("libcuda.so.1"), "stub_set_delay_us"):
        raise RuntimeError(
            "libcuda.so.1 is already there and is not the stub driver: start this process with "
            "fake_cuda.environment()"
        )


def _patch_kernels() -> None:
    """The stub has the kernels in itself, and takes any PTX for them: none has to be built."""
    from torch_cgx import _kernels

    _kernels.image = lambda major, minor: b"// the stub's own\n.version 7.0\n\0"


def _patch_torch(module: Any) -> None:
    import torch

    def current_stream(device: Any = None) -> torch.Stream:
        return torch.accelerator.current_stream(device)

    def set_device(device: Any) -> None:
        index = device if isinstance(device, int) else torch.device(device).index
        if index is not None and index >= 0:
            module.set_device(index)

    def synchronize(device: Any = None) -> None:
        module.synchronize()

    replaced: dict[str, Callable[..., Any]] = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "device_count": module.device_count,
        "current_device": module.current_device,
        "set_device": set_device,
        "synchronize": synchronize,
        "_sleep": module.sleep,
        "current_stream": current_stream,
        "get_device_capability": lambda device=None: (8, 0),
        "get_device_name": lambda device=None: "a fake CUDA device",
    }
    for name, function in replaced.items():
        setattr(torch.cuda, name, function)


def new_stream() -> torch.Stream:
    """One of the pool's 32, in turn, as torch hands them out."""
    import torch

    return torch.Stream(device="cuda")


def default_stream() -> torch.Stream:
    import torch

    cuda = 1  # as c10::DeviceType has it
    return torch.Stream(stream_id=0, device_index=0, device_type=cuda)


@contextlib.contextmanager
def held(stream: torch.Stream) -> Iterator[Any]:
    """Work put on `stream` inside waits for the end of the scope, or for `.release()` of what this
    gives; `.await_reached(1)` returns when the stream has come to it.
    """
    gate = _module.Gate()
    with stream:
        gate.hold()
    try:
        yield gate
    finally:
        gate.release()


def future() -> Any:
    """torch's c10::ivalue::Future of a list of tensors on the device, as Work::getFuture() gives
    it: `.mark_completed([tensor])`, `.wait()`.
    """
    return _module.Future()


def peek(tensor: torch.Tensor) -> torch.Tensor:
    """What is in the tensor's memory now, on the CPU: waits for no stream."""
    return _module.peek(tensor)


def set_delay_us(us: int) -> None:
    """How long every stream sleeps before each task to come."""
    _module.set_delay_us(us)


def records(stream: torch.Stream) -> int:
    """How often memory was recorded on `stream` (record_stream, recordDataPtrOnStream)."""
    return _module.records(stream.stream_id)


def blocks(used: bool = True) -> int:
    """Blocks of memory in use; with used=False, those that are free or wait for streams."""
    return _module.blocks(used)


def empty_cache() -> None:
    """Waits for all streams, and gives the memory that is free back to the driver."""
    _module.empty_cache()


def set_device(index: int) -> None:
    _module.set_device(index)


def has_context() -> bool:
    """Whether a driver's context is current on this thread."""
    return _module.has_context()


def set_lazy_contexts(lazy: bool) -> None:
    """True: as torch's own CUDA, to set or exchange a device for itself makes no context current;
    the first event, copy or allocation of the thread does. False, at first: each set does.
    """
    _module.set_lazy_contexts(lazy)
