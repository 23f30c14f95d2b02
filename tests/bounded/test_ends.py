"""At the ends of processes: calls in exit functions, and in children of a fork."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

import torch_cgx
from tests import warm
from tests.bounded.helpers import same_bits, some
from tests.distributed import ROOT
from torch_cgx import _C, bounded
from torch_cgx.bounded import bdi
from torch_cgx.compat import cuda_float_compress

AT_EXIT = textwrap.dedent(
    """
    import atexit, sys
    import torch
    import torch.distributed as dist
    from torch_cgx import _C, bounded

    torch.set_num_threads(2)
    w = torch.randn(10 * 65536)
    path = sys.argv[2]

    def last():
        payload = bounded.compress(w, max_error=1e-3)
        assert bounded.decompress(payload).shape == w.shape
        bounded.save({"w": w}, path, max_error=1e-3)
        assert bounded.load(path)["w"].shape == w.shape
        bounded.broadcast(w, max_error=1e-3)
        threads = _C.CallThreads(lambda: None)
        with threads:
            assert threads.start(2) == 2
        print("saved")

    dist.init_process_group("gloo", init_method="file://" + path + ".store", rank=0, world_size=1)
    if sys.argv[1] == "used":
        bounded.compress(w, max_error=1e-3)
    atexit.register(last)
    """
)


def test_everything_works_in_exit_functions(tmp_path: Path) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", AT_EXIT, before, str(tmp_path / before)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for before in ("used", "new")
    ]
    for process in started:
        out, errors = process.communicate(timeout=120)
        assert (process.returncode, out) == (0, "saved\n"), errors
    for name in ("used", "new"):
        assert bounded.load(tmp_path / name)["w"].shape == (655360,)


DAEMONS = textwrap.dedent(
    """
    import threading, time
    import torch
    from torch_cgx import bounded

    torch.set_num_threads(3)
    x = torch.randn(30 * 65536)
    payload = bounded.compress(x, max_error=1e-3)
    out = torch.empty_like(x)

    def go_on():
        while True:
            bounded.compress(x, max_error=1e-3)
            bounded.decompress(payload, out)

    for _ in range(2):
        threading.Thread(target=go_on, daemon=True).start()
    time.sleep(0.3)
    """
)


def test_daemons_in_a_call_do_not_harm_the_end() -> None:
    """Their threads end before the interpreter, which would unwind them.

    It may unwind a daemon in a function of torch that asks for Python's lock in a destructor
    (Tensor.detach): the process then aborts, some times in a hundred. So an abort is tried again; a
    call that is unwound ends nearly every process.
    """
    torchs = (-signal.SIGABRT, b"terminate called without an active exception\n")
    ends = []
    while ends.count(torchs) == len(ends) < 8:
        started = [
            subprocess.Popen([sys.executable, "-c", DAEMONS], cwd=ROOT, stderr=subprocess.PIPE)
            for _ in range(2)
        ]
        for process in started:
            _, errors = process.communicate(timeout=120)
            ends.append((process.returncode, errors))
    assert set(ends) - {torchs} == {(0, b"")}


def _in_child(call: Callable[[Callable[[str], None]], None]) -> None:
    """Runs it in a fork; it says what it does. AssertionError: it has failed, or does not end."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        said = open(writer, "w")  # noqa: SIM115
        try:
            call(lambda doing: print(doing, file=said, flush=True))
        except BaseException:
            os.write(writer, traceback.format_exc().encode()[-4000:])
            os._exit(1)
        os._exit(0)
    os.close(writer)
    with open(reader) as answer:
        text = answer.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, f"status {status} (-14: it hangs) after: {text}"


def test_a_forked_process_does_all(tmp_path: Path) -> None:
    """It has none of the threads of torch's OpenMP, which have worked for the forking thread."""
    threads = torch.get_num_threads()
    x = some((6 * 65536 + 70,), torch.float32)
    wide = some((700, 900), torch.float32).t()
    mask = (wide > 0).t()
    z = some((400_000,), torch.complex64)
    words = torch.randint(0, 1000, (400, 2000), dtype=torch.int32).t()
    path = tmp_path / "file.cgx"
    holes = x.masked_fill(x > 2, math.inf)
    odd = torch.frombuffer(bytearray(4 * x.numel() + 1), dtype=torch.float32, offset=1).copy_(x)
    codec = torch_cgx.codecs.MaxMin(bits=4, bucket_size=512)
    compression = bdi.Compression([bdi.Config(delta_size=8), bdi.Config(delta_size=16)])

    def broadcast() -> torch.Tensor:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        with _C.SafeAfterFork():
            y, conjugated = wide.clone(), z.clone().conj()
        bounded.broadcast({"y": y, "z": conjugated}, relative=1e-3)
        dist.destroy_process_group()
        return y

    def saved() -> torch.Tensor:
        bounded.save({"x": wide}, path, relative=1e-3)
        loaded: torch.Tensor = bounded.load(path)["x"]
        return loaded

    def into_strided() -> torch.Tensor:
        out = torch.empty(700, 900).t()
        return bounded.decompress(bounded.compress(wide, max_error=1e-3), out)

    calls: dict[str, Callable[[], torch.Tensor]] = {
        "relative": lambda: bounded.compress(x, relative=1e-3),
        "relative, with infinities": lambda: bounded.compress(holes, relative=1e-3),
        "strided": lambda: bounded.compress(wide, relative=1e-3),
        "bool": lambda: bounded.compress(mask),
        "complex": lambda: bounded.compress(z.conj(), relative=1e-3),
        "not aligned": lambda: bounded.compress(odd, max_error=1e-3),
        "rows": lambda: bounded.decompress(payload, rows=slice(10, 590_000)),
        "rows with a step": lambda: bounded.decompress(payload, rows=slice(10, None, 2)),
        "out": into_strided,
        "save": saved,
        "broadcast": broadcast,
        "bdi": lambda: compression.compress(words),
        "bdi back": lambda: compression.roundtrip(words),
        "bdi report": lambda: torch.tensor(compression.report(words).size_bits),
        "bdi values": lambda: compression.compressed_repr(words, 0.5, 3),
        "cuda_float_compress": lambda: cuda_float_compress.cuszplus_compress(wide, 1e-3),
        "codec": lambda: codec.encode(wide),
        "codec back": lambda: codec.roundtrip(wide),
        "simulate": lambda: torch_cgx.simulate([wide, wide], codec).result,
    }
    try:
        torch.set_num_threads(2)
        payload = bounded.compress(x, max_error=1e-3)
        expected = {name: call() for name, call in calls.items()}
        assert float(wide.contiguous().sum()) != 0  # OpenMP keeps threads for this thread now

        def all_of_them(say: Callable[[str], None]) -> None:
            with _C.SafeAfterFork():
                assert torch.get_num_threads() == 1
                assert _C.intra_op_threads() == 2
            for name, call in calls.items():
                say(name)
                found = call()
                with _C.SafeAfterFork():
                    assert same_bits(found, expected[name]), name
            assert torch.get_num_threads() == 2
            threads = _C.CallThreads(lambda: None)
            with threads:
                assert threads.start(2) == 2

        _in_child(all_of_them)
    finally:
        torch.set_num_threads(threads)


def test_where_no_threads_are_lost_torch_keeps_its_own() -> None:
    """A child of a process with one thread is as free as a new one."""
    script = textwrap.dedent(
        """
        import os
        import torch
        from torch_cgx import _C

        child = os.fork()
        if child == 0:
            torch.set_num_threads(2)
            with _C.SafeAfterFork():
                os._exit(torch.get_num_threads())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
        """
    )
    subprocess.run([*warm.python(), "-c", script], cwd=ROOT, check=True, timeout=60)
