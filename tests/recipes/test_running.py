"""The helper of the recipes' tests: it fails where a recipe fails, and leaves nothing running."""

from __future__ import annotations

import subprocess

import pytest

from tests.recipes import running
from tests.recipes.running import needs_recipes, python, run

pytestmark = needs_recipes


def test_the_environment_has_what_its_packages_need():
    done = subprocess.run(
        [python(), "-m", "pip", "check"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_torch_is_the_one_of_the_main_environment():
    import torch

    script = "import torch; print(torch.__version__, torch.__file__)"
    assert run([python(), "-c", script]).output.split() == [torch.__version__, torch.__file__]


def test_output_and_status_are_there():
    finished = run([python(), "-c", "print('loss 1'); print('loss 0'); exit(3)"], status=3)
    assert finished.matches(r"loss (\d)") == ["0", "1"] and finished.status == 3


@pytest.mark.parametrize("wanted, code", [(0, 1), (None, 0), (2, 1)])
def test_another_status_fails_with_the_output(wanted, code):
    with pytest.raises(AssertionError, match=f"status {code}, expected (.|\n)*shown"):
        run([python(), "-c", f"print('shown'); exit({code})"], status=wanted)


def test_what_takes_too_long_is_ended(tmp_path):
    script = tmp_path / "sleeper.py"
    child = "import time; print('child', flush=True); time.sleep(300)"
    command = f"[sys.executable, '-c', {child!r}, {str(script)!r}]"
    script.write_text(f"import subprocess, sys\nsubprocess.run({command})\n")
    with pytest.raises(AssertionError, match=r"still running after 5 s(.|\n)*\nchild"):
        run([python(), str(script)], seconds=5)
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert str(script) not in listed.stdout


def test_a_process_that_outlives_its_run_is_an_error(monkeypatch):
    monkeypatch.setattr(running, "_GRACE_SECONDS", 1.0)
    code = "import subprocess; subprocess.Popen(['sleep', '300'], start_new_session=True)"
    with pytest.raises(AssertionError, match=r"left running: \['\d+ sleep 300"):
        run([python(), "-c", code])
