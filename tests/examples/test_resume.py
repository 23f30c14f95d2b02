"""The example that resumes from a bounded checkpoint, with tiny settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import resume_bounded
import torch

TINY = ["--layers", "1", "--heads", "2", "--width", "32", "--context", "16", "--batch", "8"]
TINY += ["--data-mb", "0.3", "--steps", "20", "--further", "10"]


def test_a_bounded_resume_reaches_the_loss_of_an_exact_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*TINY, "--max-error", "1e-4", "0.3", "--json", str(tmp_path / "r.json")]
    resume_bounded.main(arguments)
    result = json.loads((tmp_path / "r.json").read_text())
    exact, fine, coarse = result["rows"]
    assert exact["loss"] == result["loss"] != exact["final_loss"]
    assert fine["final_loss"] == pytest.approx(exact["final_loss"], rel=1e-3)
    assert fine["loss"] != exact["loss"]
    # A bound that is larger than the weights is none that one resumes from.
    assert abs(coarse["loss"] - exact["loss"]) > 10 * abs(fine["loss"] - exact["loss"])
    assert coarse["bytes"] < fine["bytes"] < exact["bytes"] / 2
    text = capsys.readouterr().out
    assert "21,184 parameters, 20 steps, 10 more" in text and "bounded, 0.0001" in text


def test_an_exact_resume_is_the_run_without_a_break(tmp_path: Path) -> None:
    from argparse import Namespace

    import corpus

    args = Namespace(steps=6, further=4, batch=8, context=16, layers=1, heads=2, width=32, seed=0)
    args.lr = 1e-3
    text, _ = corpus.load(0.3)
    whole = resume_bounded.new_run(args)
    resume_bounded.train(whole, 10, args, text)
    first = resume_bounded.new_run(args)
    resume_bounded.train(first, 6, args, text)
    (one,) = resume_bounded.checkpoints([], 1e-2)
    one.save(first.state_dict(), tmp_path / "a")
    second = resume_bounded.new_run(args)
    second.load_state_dict(one.load(tmp_path / "a"))
    assert second.steps == 6
    resume_bounded.train(second, 10, args, text)
    for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_an_absolute_bound_of_the_moments_loses_the_second_ones(tmp_path: Path) -> None:
    first = torch.linspace(1e-3, 3e-3, 100)
    moments = {"exp_avg": first, "exp_avg_sq": first**2, "step": torch.ones(1)}
    state = {"norm": torch.ones(1), "optimizer": moments}
    for kind, left in (("pointwise", first**2), ("max_error", torch.zeros(100))):
        _, one = resume_bounded.checkpoints([1e-4], 1e-4, kind)
        one.save(state, tmp_path / kind)
        found = one.load(tmp_path / kind)["optimizer"]
        assert torch.allclose(found["exp_avg_sq"], left, rtol=1.001e-4, atol=0)
        assert torch.allclose(found["exp_avg"], first, rtol=0, atol=1.001e-4)


def test_bad_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        resume_bounded.main(["--steps", "0"])
    assert "--steps 0: must be positive" in capsys.readouterr().err
