"""Each example as a user starts it: with torchrun on two ranks, tiny settings, results as JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cifar_train
import common
import pytest
import torch
import train_digits
import train_diloco
import train_gpt
from launch import RunFailed, run_example

from tests import warm
from tests.examples import cifar_files

TINY_GPT = ["--layers", "1", "--heads", "2", "--width", "32", "--context", "16", "--batch", "8"]
TINY_GPT += ["--data-mb", "0.3"]


def check(run: dict[str, Any], backend: str, bits: int, steps: int, world: int = 2) -> None:
    """What the JSON of every example promises."""
    assert (run["backend"], run["bits"]) == (backend, bits)
    assert (run["world_size"], run["steps"], run["seed"]) == (world, steps, 0)
    assert len(run["loss"]) == steps
    assert all(math.isfinite(loss) and loss > 0 for loss in run["loss"])
    tail = run["loss"][-20:]
    assert run["final_train_loss"] == pytest.approx(sum(tail) / len(tail))
    assert run["final_val_loss"] > 0
    assert run["step_time_ms_median"] > 0
    assert run["train_seconds"] * 1e3 > run["step_time_ms_median"]
    assert run["bytes_source"] == ("measured" if backend == "cgx" else "computed")
    assert run["machine"]["torch"] == torch.__version__
    assert {"cpu", "cpu_count", "device", "python", "system"} <= set(run["machine"])
    assert len(run["weights_sha256"]) == 64


@pytest.fixture
def forked() -> Iterator[None]:
    """torchrun and its ranks do not import torch anew."""
    with warm.executable():
        yield


@pytest.mark.usefixtures("forked")
def test_digits_gloo() -> None:
    run = run_example("train_digits.py", ["--steps", "60", "--no-progress"])
    check(run, "gloo", 32, 60)
    assert run["hook"] == "none" and run["bucket_size"] is None
    assert run["parameters"] == 151_306
    assert run["bytes_sent_per_step"] == 4 * 151_306  # 2 (N-1)/N is 1 for two ranks
    assert run["accuracy"] > 0.6


@pytest.mark.usefixtures("forked")
def test_digits_cgx() -> None:
    import torch_cgx  # noqa: F401  (the test needs it: no skip)

    run = run_example("train_digits.py", ["--backend", "cgx", "--bits", "4", "--epochs", "4"])
    check(run, "cgx", 4, 4 * (1437 // 48))
    assert run["hook"] == "cgx" and run["bucket_size"] == 512
    # 4 bits a value, 8 bytes a bucket of 512; biases and the first layer exact; headers are small.
    compressed = 32 * 64 * 9 + 1024 * 128 + 128 * 10
    expected = compressed * (4 / 8 + 8 / 512) + 4 * (151_306 - compressed)
    assert expected <= run["bytes_sent_per_step"] < 1.02 * expected
    assert run["accuracy"] > 0.94
    assert run["cgx_stats"]["calls"] >= run["steps"]


@pytest.mark.usefixtures("forked")
def test_gpt_with_bits_per_layer() -> None:
    arguments = [*TINY_GPT, "--steps", "6", "--backend", "cgx"]
    uniform, adaptive = (
        run_example("train_gpt.py", [*arguments, *bits])
        for bits in (["--bits", "3"], ["--average-bits", "3"])
    )
    check(adaptive, "cgx", 3, 6)
    assert adaptive["adaptive"] and not uniform["adaptive"]
    # As many bytes at most; the all-reduces of errors and of bits at steps 2 and 4 are small.
    assert adaptive["bytes_sent_per_step"] <= 1.02 * uniform["bytes_sent_per_step"]
    assert adaptive["weights_sha256"] != uniform["weights_sha256"]


@pytest.mark.usefixtures("forked")
def test_gpt_gloo_with_fp16_hook() -> None:
    run = run_example("train_gpt.py", [*TINY_GPT, "--steps", "40", "--hook", "fp16"])
    check(run, "gloo", 16, 40)
    assert run["hook"] == "fp16" and run["accuracy"] is None
    assert run["bytes_sent_per_step"] == 2 * run["parameters"]
    assert 2.5 < run["unigram_entropy"] < 4
    assert run["final_val_loss"] < math.log(256)


@pytest.mark.usefixtures("forked")
def test_diloco_cgx() -> None:
    arguments = ["--backend", "cgx", "--every", "8", "--steps", "36"]
    run = run_example("train_diloco.py", [*TINY_GPT, *arguments])
    check(run, "cgx", 4, 36)
    assert (run["method"], run["every"]) == ("diloco", 8)
    assert [point["steps"] for point in run["curve"]] == [0, 8, 16, 24, 32, 36]
    seconds = [point["seconds"] for point in run["curve"]]
    assert seconds == sorted(seconds) and run["train_seconds"] == seconds[-1]
    assert run["curve"][-1]["val_loss"] == run["final_val_loss"] < run["curve"][0]["val_loss"]
    # Five rounds, the last one a short one; norms are exact.
    compressed = 256 * 32 + 16 * 32 + 12 * 32 * 32
    small = 16 * 32
    expected = (compressed - small) * (4 / 8 + 8 / 512) + 4 * (
        run["parameters"] - compressed + small
    )
    assert expected * 5 / 36 <= run["bytes_sent_per_step"] < 1.05 * expected * 5 / 36


@pytest.mark.usefixtures("forked")
def test_diloco_ddp_for_a_time() -> None:
    arguments = ["--method", "ddp", "--every", "2", "--steps", "100000", "--seconds", "0.01"]
    run = run_example("train_diloco.py", [*TINY_GPT, *arguments])
    check(run, "gloo", 32, run["steps"])
    assert 2 <= run["steps"] < 100_000 and run["steps"] % 2 == 0
    assert run["curve"][-1]["seconds"] >= 0.01


@pytest.mark.usefixtures("forked")
def test_cifar_gloo(tmp_path: Path) -> None:
    cifar_files.write(tmp_path / "cifar-10-batches-bin", "cifar-10-batches-bin")
    arguments = ["--data", str(tmp_path), "--batch", "4", "--steps", "1", "--width", "8"]
    run = run_example("cifar_train.py", arguments)
    check(run, "gloo", 32, 1)
    assert run["example"] == "cifar10"
    assert 0 <= run["accuracy"] <= 1


def single(main: Any, path: Path, *arguments: str) -> dict[str, Any]:
    """Runs an example within this process, without torchrun."""
    main([*arguments, "--no-progress", "--json", str(path)])
    return json.loads(path.read_text())


@pytest.fixture(autouse=True)
def _no_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_single_process_is_repeatable(tmp_path: Path) -> None:
    arguments = [*TINY_GPT, "--steps", "10"]
    first, again = (single(train_gpt.main, tmp_path / "r.json", *arguments) for _ in range(2))
    check(first, "gloo", 32, 10, world=1)
    assert first["loss"] == again["loss"]
    assert first["weights_sha256"] == again["weights_sha256"]
    assert first["bytes_sent_per_step"] == 0
    other = single(train_gpt.main, tmp_path / "r.json", *arguments, "--seed", "1")
    assert other["weights_sha256"] != first["weights_sha256"]


@pytest.mark.parametrize("kind", cifar_files.KINDS)
def test_cifar_trains_on_every_format(tmp_path: Path, kind: str) -> None:
    cifar_files.write(tmp_path / kind, kind)
    arguments = ["--data", str(tmp_path), "--batch", "4", "--width", "4", "--epochs", "1"]
    run = single(cifar_train.main, tmp_path / "r.json", *arguments)
    check(run, "gloo", 32, 2 if "100" in kind else 10, world=1)
    assert run["example"] == ("cifar100" if "100" in kind else "cifar10")


@pytest.mark.usefixtures("forked")
def test_failed_run_shows_the_cause(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="holds no CIFAR data set"):
        run_example("cifar_train.py", ["--data", str(tmp_path)], processes=1)


def test_run_that_takes_too_long_is_ended() -> None:
    with pytest.raises(RunFailed, match="took more than 0.5 s"):
        run_example("train_digits.py", [], processes=1, timeout=0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bits", "4"], "--bits 4 needs --backend cgx"),
        (["--bits", "9", "--backend", "cgx"], "invalid choice: .?9"),
        (["--backend", "cgx", "--hook", "fp16"], "--hook fp16 is for other backends"),
        (["--batch", "0"], "--batch 0: must be positive"),
        (["--steps", "-3"], "--steps -3: must be positive"),
        (["--bucket-size", "0"], "--bucket-size 0: must be positive"),
        (["--average-bits", "3"], "--average-bits 3 needs --backend cgx, without --bits"),
        (
            ["--backend", "cgx", "--bits", "4", "--average-bits", "2.5"],
            "--average-bits 2.5 needs --backend cgx, without --bits",
        ),
        (["--backend", "cgx", "--average-bits", "9"], "--average-bits 9: must be from 1 to 8"),
    ],
)
def test_bad_arguments(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        train_digits.main(arguments)
    assert caught.value.code == 2
    text = capsys.readouterr().err
    assert re.search(message, text), text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backend", "gloo"], "--method diloco needs --backend cgx, not gloo"),
        (["--method", "ddp", "--every", "0"], "--every 0: must be positive"),
        (["--method", "ddp", "--validate-every", "-1"], "--validate-every -1: must be positive"),
    ],
)
def test_bad_arguments_of_diloco(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        train_diloco.main(arguments)
    assert caught.value.code == 2 and message in capsys.readouterr().err


def test_default_bits() -> None:
    def bits(*arguments: str) -> int:
        return common.parse(common.parser("x"), list(arguments)).bits

    assert bits() == 32
    assert bits("--backend", "cgx") == bits("--backend", "cpu:gloo,cuda:cgx") == 4
