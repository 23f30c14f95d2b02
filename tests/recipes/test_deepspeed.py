"""DeepSpeed, ZeRO stages 0 to 3: two ranks train with compressed gradients."""

from __future__ import annotations

import re

import pytest
import torch

from tests.distributed import ROOT
from tests.recipes.running import Finished, extensions, needs_recipes, python, run, run_ranks

pytestmark = [needs_recipes, pytest.mark.slow]

LINE = (
    r"rank (\d) of 2: steps (\d+) to \d+, loss ([\d.]+) to ([\d.]+), weights (\w+), "
    r"sent (\d+) of (\d+) bytes"
)
_COMPILE = "from deepspeed.comm.torch import build_shm_op; build_shm_op()"
VALUES = 19722  # of the gradients; none is left out


def _check(finished: Finished, first: int = 0, *, width: int = 4, steps: int = 40) -> tuple:
    """Both ranks have ended alike, with compressed bytes; their weights and bytes sent."""
    found = sorted(re.findall(LINE, finished.output))
    assert [one[:2] for one in found] == [("0", str(first)), ("1", str(first))], finished.output
    assert found[0][4:6] == found[1][4:6], "weights or bytes differ between ranks"
    for _, _, begin, end, _, sent, raw in found:
        assert float(end) < (0.4 if first == 0 and steps == 40 else 1.0) * float(begin)
        assert int(raw) - width * VALUES * (steps - first) in range(9 * steps)  # and norms
        assert 0 < int(sent) < int(raw) / (7 if width == 4 else 3.5)
    return found[0][4], int(found[0][5])


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """DeepSpeed compiles an op where it first starts, in a minute or more. A compilation that is
    ended leaves a lock, for which all later ones wait.
    """
    for lock in extensions().rglob("lock"):
        lock.unlink()
    run([python(), "-c", _COMPILE], seconds=900)


@pytest.mark.parametrize("stage", range(4))
def test_two_ranks_train_with_fewer_bytes(stage):
    _check(run_ranks("deepspeed_train.py", "--stage", str(stage)))


@pytest.mark.parametrize("stage, dtype", [(0, "bf16"), (2, "fp16"), (3, "bf16")])
def test_half_precision_trains(stage, dtype):
    arguments = ["deepspeed_train.py", "--stage", str(stage), "--dtype", dtype]
    if dtype == "fp16" and not torch.ops.mkldnn._is_mkldnn_fp16_supported():
        assert "fp16 is not supported" in run_ranks(*arguments, status=None).output
        return
    _check(run_ranks(*arguments), width=2)


@pytest.mark.parametrize("stage, messages", [(1, 1), (2, 3)])
def test_when_accumulated_batches_are_sent(stage, messages):
    """Stage 1 (as 0) sends the sum of three batches once, stage 2 (as 3) each of them."""
    sent = []
    for accumulate in "1", "3":
        arguments = ["--stage", str(stage), "--steps", "10", "--accumulate", accumulate]
        finished = run_ranks("deepspeed_train.py", *arguments)
        (line, *_) = re.findall(LINE, finished.output)
        sent.append(int(line[5]))
    assert sent[1] == pytest.approx(messages * sent[0], rel=0.01)


def test_a_checkpoint_goes_on_with_the_same_bits(tmp_path):
    common = ["deepspeed_train.py", "--stage", "1"]
    whole, _ = _check(run_ranks(*common))
    common += ["--checkpoint", str(tmp_path)]
    _check(run_ranks(*common, "--steps", "20"), steps=20)
    assert _check(run_ranks(*common), 20)[0] == whole


def test_other_ways_to_set_bits():
    """The environment counts; options of the default group do not, as the documentation says."""
    script = str(ROOT / "tests" / "recipes" / "deepspeed_ways.py")
    bits = {"CGX_COMPRESSION_QUANTIZATION_BITS": "4", "CGX_COMPRESSION_MINIMAL_SIZE": "1024"}
    by_environment = run_ranks(script, "environment", env=bits)
    assert by_environment.matches(r"rank \d: (.*)") == ["5 calls compressed"] * 2
    by_options = run_ranks(script, "options")
    assert by_options.matches(r"rank \d: (.*)") == ["0 calls compressed"] * 2
