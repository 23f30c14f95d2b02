"""A warm start is, for its caller, a start."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.distributed import ROOT
from tests.hosts.marks import needs_hosts
from torch_cgx.testbed.bed import hosts

pytestmark = pytest.mark.skipif(not warm.enabled(), reason="CGX_TEST_WARM=0, or not Linux")

ENV = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    options = {"env": ENV, "stdout": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen([*warm.python(), *arguments], **options)


def said(*arguments: str, **options: Any) -> str:
    process = start(*arguments, **options)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return output


LOOK = """
import json, os, resource, signal, sys
print(json.dumps({
    "argv": sys.argv, "path": sys.path[:2], "folder": os.getcwd(), "name": __name__,
    "environment": dict(os.environ), "file": os.read(int(sys.argv[1]), 9).decode(),
    "umask": os.umask(0), "cores": sorted(os.sched_getaffinity(0)),
    "limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    "ignored": signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN,
    "threads": len(os.listdir("/proc/self/task")), "torch": "torch" in sys.modules,
    "files": sorted(os.readlink(f"/proc/self/fd/{n}") for n in range(3, 20)
                    if os.path.exists(f"/proc/self/fd/{n}")),
}))
"""


def change() -> None:
    os.umask(0o27)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_NOFILE, (777, 999))
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])


def looked(command: list[str], folder: Path) -> dict[str, Any]:
    (folder / "look.py").write_text(LOOK)
    (folder / "text").write_text("contents!")
    with (folder / "text").open() as file:
        number = file.fileno()
        done = subprocess.run(
            [*command, str(number), "a b"],
            cwd=folder,
            env={**ENV, "PYTHONPATH": f"{folder}:{ROOT}", "NOTE": "x"},
            pass_fds=[number],
            preexec_fn=change,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("how", ["-c", "-m", "script"])
def test_it_finds_what_a_started_process_finds(how: str, tmp_path: Path) -> None:
    arguments = {"-c": ["-c", LOOK], "-m": ["-m", "look"], "script": [str(tmp_path / "look.py")]}
    forked = looked([*warm.python(), *arguments[how]], tmp_path)
    started = looked([sys.executable, *arguments[how]], tmp_path)
    assert forked.pop("torch") and not started.pop("torch")
    assert forked == started
    assert started["limit"] == 777 and started["file"] == "contents!" and started["ignored"]


@pytest.mark.parametrize("code, status", [("pass", 0), ("import sys; sys.exit(7)", 7), ("1/0", 1)])
def test_its_status(code: str, status: int) -> None:
    process = start("-c", code, stderr=subprocess.PIPE)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status
    assert ("ZeroDivisionError" in errors) == (status == 1) and "zygote.py" not in errors


def test_the_signal_that_ended_it() -> None:
    process = start("-c", "import os; os.kill(os.getpid(), 9)")
    assert process.wait(timeout=60) == -signal.SIGKILL


def alive(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.01)
    return os.path.exists(f"/proc/{pid}")


SLEEP = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_signals_reach_it(number: signal.Signals) -> None:
    process = start("-c", SLEEP)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.send_signal(number)
    assert process.wait(timeout=10) == -number
    assert not alive(pid)


def test_a_signal_to_its_session_reaches_what_it_has_started() -> None:
    code = f"import subprocess, sys; subprocess.run(['python3', '-c', {SLEEP!r}])"
    process = start("-c", code, start_new_session=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=10)
    assert not alive(pid)


def test_it_runs_what_is_at_exit() -> None:
    code = "import atexit; atexit.register(print, 'later'); print('now')"
    assert said("-c", code) == "now\nlater\n"


def test_variables_that_are_read_early_count() -> None:
    command, env = ["-c", "print(hash('torch'))"], {**ENV, "PYTHONHASHSEED": "5"}
    started = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True)
    assert said(*command, env=env) == started.stdout


def test_random_numbers_differ() -> None:
    code = "import random, numpy; print(random.random(), numpy.random.random())"
    assert len({number for _ in range(2) for number in said("-c", code).split()}) == 4


def test_the_name_by_which_the_test_bed_finds_it_stays() -> None:
    code = (
        "import threading, torch\n"
        "torch.multiprocessing._set_thread_name('pt_elastic')\n"
        "print(open('/proc/self/comm').read(), end='')\n"
        "def other():\n"
        "    torch.multiprocessing._set_thread_name('other')\n"
        "    print(torch.multiprocessing._get_thread_name())\n"
        "thread = threading.Thread(target=other); thread.start(); thread.join()"
    )
    main, other = said("-c", code).split()
    assert main.startswith("warm-") and other == "other"


def test_torch_cgx_is_the_one_on_the_path() -> None:
    found = said("-c", "import torch_cgx; print(torch_cgx.__file__)")
    assert Path(found.strip()) == ROOT / "torch_cgx" / "__init__.py"


@needs_hosts
def test_it_is_on_the_host_where_it_was_started() -> None:
    code = "import os, socket; print(socket.gethostname(), os.stat('/proc/self/ns/net').st_ino)"
    with hosts(2, rate=None) as bed:
        outputs = bed.run([*warm.python(), "-c", code])
        for name, output in zip(bed.names, outputs, strict=True):
            assert output.split() == [name, str(os.stat(f"/run/netns/{name}").st_ino)]


def test_programs_started_by_its_executable_are_warm() -> None:
    code = "import sys; print('torch' in sys.modules, sys.argv[1:])"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}, 'a  b'])"
    assert said("-c", outer, env=ENV | warm.NESTED) == "True ['a  b']\n"
    assert said("-c", outer).startswith("False")
    unknown = "import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', 'print(1)'])"
    assert said("-c", unknown, env=ENV | warm.NESTED) == "1\n"


def test_programs_below_a_prelude_have_it_too() -> None:
    prelude = "import sys; sys.modules['imported first'] = sys"
    code = "import sys; print('imported first' in sys.modules, 'torch' in sys.modules)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    for _ in range(2):  # the second one finds the script of the first
        done = subprocess.run(
            [*warm.python(prelude=prelude), "-c", outer],
            env=ENV | warm.nested(sys.executable, prelude),
            capture_output=True,
            text=True,
        )
        assert done.stdout == "True True\n", done.stderr


def test_a_hub_that_is_gone_is_an_error() -> None:
    command = [sys.executable, "-I", "-S", str(warm.HERE / "client.py"), "/nowhere", "", "-c", ""]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "no hub at /nowhere" in done.stderr


SPAWNS = """
import multiprocessing, sys

def name(queue):
    queue.put(open("/proc/self/comm").read())

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=name, args=(queue,))
    process.start()
    print(queue.get())
    process.join()
    assert process.exitcode == 0
"""


def test_processes_of_multiprocessing_are_warm_below_a_nested_start(tmp_path):
    script = tmp_path / "spawns.py"
    script.write_text(SPAWNS)
    assert said(str(script), env=ENV | warm.NESTED).startswith("warm-")
    assert not said(str(script), env=ENV).startswith("warm-")


CLOSING = """
import os, subprocess
from tests import warm

def children():
    return open(f"/proc/self/task/{os.getpid()}/children").read().split()

for used in (True, False):  # a closed hub is started anew
    folder = os.path.dirname(warm.hub())
    if used:
        assert subprocess.run([*warm.python(), "-c", ""]).returncode == 0
    assert len(children()) == 1
    warm.close()
    assert children() == [] and not os.path.exists(folder)
warm.close()
"""


def test_a_hub_can_be_ended_before_the_process_ends():
    env = {name: value for name, value in ENV.items() if name != "CGX_TEST_WARM_HUB"}
    assert subprocess.run([sys.executable, "-c", CLOSING], env=env, timeout=60).returncode == 0
