"""Handlers of signals that raise while native code works: on memory that only the call holds, and
on the caller's own. In a process of its own, which a fault would end.
"""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path

from tests import warm
from tests.distributed import ROOT

SCRIPT = textwrap.dedent(
    """
    import faulthandler, os, signal, sys, threading, time
    import torch
    from torch_cgx import bounded
    from torch_cgx.bounded import _entropy

    faulthandler.enable()
    torch.set_num_threads(3)
    main = threading.get_ident()
    wide = torch.randn(3072, 4096)  # memory of 48 MiB is given back to the system at once
    mask = torch.randint(0, 4, (1 << 26,), dtype=torch.uint8).view(torch.bool)
    payload = bounded.compress(wide, max_error=1e-3)
    out = torch.zeros_like(wide)
    state = {"w": wide.t()}
    calls = {
        "a contiguous copy": lambda: bounded.compress(wide.t(), max_error=1e-3),
        "a temporary": lambda: bounded.compress(wide + 1, max_error=1e-3),
        "a mask": lambda: bounded.compress(mask),
        "save": lambda: bounded.save(state, sys.argv[1], max_error=1e-3),
        "out": lambda: bounded.decompress(payload, out),
        "a result": lambda: bounded.decompress(payload),
    }
    active, blocks, when, again = 0, 0, "at once", True

    def late(work):
        def run(*args):
            global active, blocks
            if threading.get_ident() == main:
                blocks += 1
                if blocks == 3:  # the others are within a block each
                    while active < 2:
                        time.sleep(0.001)
                    if when == "at once":
                        signal.raise_signal(signal.SIGALRM)
                    signal.setitimer(signal.ITIMER_REAL, 0.002)
                return work(*args)
            active += 1
            time.sleep(0.02)  # so that they go on after the exception
            done = work(*args)
            active -= 1
            return done
        return run

    for name in ("finish", "decompress"):
        setattr(_entropy.Coder, name, late(getattr(_entropy.Coder, name)))

    def handler(number, frame):
        global again
        if again:  # while threads are waited for
            again = False
            signal.setitimer(signal.ITIMER_REAL, 0.005)
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, handler)
    for name, call in calls.items():
        for when in ("at once", "later"):
            blocks, still, again = 0, None, True
            try:
                try:
                    call()
                    raise SystemExit(f"{name} ended without the exception")
                except KeyboardInterrupt:
                    still = active
                    time.sleep(0.02)
            except KeyboardInterrupt:
                pass
            before = out.clone()
            time.sleep(0.03)
            assert still == active == 0, f"{name}: {still}, {active} threads work on"
            assert torch.equal(before, out), f"{name}: out is written"
        print(name, flush=True)
    assert torch.equal(bounded.decompress(payload, out), bounded.decompress(payload))
    print(os.listdir(os.path.dirname(sys.argv[1])))
    """
)


def test_native_work_has_ended_when_an_exception_leaves(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    folder = tmp_path / "saved"
    folder.mkdir()
    done = subprocess.run(
        [*warm.python(), str(script), str(folder / "file.cgx")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}{done.stderr}"
    assert done.stdout.splitlines()[-1] == "[]"  # nothing is left of an interrupted save
