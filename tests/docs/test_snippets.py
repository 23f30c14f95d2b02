"""The Python blocks of README.md and of the pages of docs/ run."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import re
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.distributed import run_pooled, run_ranks
from tests.docs.documents import DOCUMENTS, README, ROOT, code_blocks
from torch_cgx.cli.report import read

PAGES = {"README.md": README, "usage.md": (ROOT / "docs" / "usage.md").read_text()}


def _run_blocks(rank, world_size, page, blocks):
    names: dict = {"__name__": "__main__"}
    torch.manual_seed(rank)  # for the pages' lines about decisions
    here = os.getcwd()
    with contextlib.redirect_stderr(io.StringIO()) as said, tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # a block writes a log
        try:
            for block in blocks:
                exec(compile(block, page, "exec"), names)
            found, _ = read(Path("cgx.jsonl")) if "watched" in names and rank == 0 else ([], [])
        finally:
            os.chdir(here)
    if found:
        assert [one["step"] for one in found] == [20, 40]
    if rank == 0 and world_size == 2:
        for line in said.getvalue().splitlines():
            if line.startswith("cgx:  "):  # of a Monitor: times and errors
                continue
            # A first line of another model is like the one that a page shows.
            shown = line.partition("; relative error")[0]
            others = ("3 of 5 parameters", "1 of 2 parameters")
            assert f"    {shown}" in PAGES[page] or any(o in line for o in others), line
    counters = torch_cgx.stats()
    answer = names["x"].clone() if "x" in names else None, counters["compressed_calls"]
    model = names["model"]
    features = next(model.parameters()).shape[1]
    model(torch.ones(4, features)).sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    compressed = torch_cgx.stats()["compressed_calls"] - counters["compressed_calls"]
    names.clear()
    del model
    gc.collect()
    dist.destroy_process_group()
    return *answer, gradients, compressed


# README: DDP's bucket. Usage: DDP's bucket, three steps with adaptive bits, three with exact zeros,
# forty that are watched, eight explicit calls, ten with error feedback and two with gradients; the
# new group counts for itself.
@pytest.mark.parametrize("page, number, calls", [("README.md", 1, 1), ("usage.md", 13, 67)])
def test_blocks_for_two_ranks_run(page, number, calls):
    blocks = code_blocks(PAGES[page], "two ranks")
    assert len(blocks) == number
    first, second = run_pooled(_run_blocks, 2, page, blocks, backend=None, timeout=120)
    assert first[1] == second[1] == calls
    if number > 1:
        assert torch.equal(first[0], second[0])
    assert all(torch.equal(a, b) for a, b in zip(first[2], second[2], strict=True))
    assert first[3] >= 1


@pytest.mark.parametrize("page", PAGES)
def test_blocks_for_two_ranks_run_on_one(page):
    blocks = code_blocks(PAGES[page], "two ranks")
    ((x, _, gradients, _),) = run_pooled(_run_blocks, 1, page, blocks, backend=None)
    assert x is None or x.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients)


def _run_alone(rank, world_size, block, name):
    names: dict = {"__name__": "__main__"}
    with contextlib.redirect_stderr(io.StringIO()):
        exec(compile(block, "usage.md", "exec"), names)
    model = names[name]
    values = [getattr(p, "full_tensor", p.detach)().clone() for p in model.parameters()]
    calls = torch_cgx.stats()["compressed_calls"]
    names.clear()
    del model
    gc.collect()
    dist.destroy_process_group()
    return values, calls


# Two gathers and a reduce-scatter of one module; an all-reduce in each of three rounds. In new
# processes: their groups come from the environment, and a rank must not have had more than others.
@pytest.mark.parametrize("kind, name", [("sharded ranks", "sharded"), ("local steps", "local")])
def test_blocks_with_a_group_of_their_own_run(kind, name):
    (block,) = code_blocks(PAGES["usage.md"], kind)
    first, second = run_ranks(_run_alone, 2, block, name, backend=None, timeout=120)
    assert first[1] == second[1] == 3
    assert all(torch.equal(a, b) for a, b in zip(first[0], second[0], strict=True))


def _set_up(rank, world_size, block):
    names: dict[str, object] = {}
    exec(compile(block, "launching.md", "exec"), names)
    return names["local_rank"]


def test_blocks_for_launched_ranks_run():
    (block,) = code_blocks((ROOT / "docs" / "launching.md").read_text(), "launched ranks")
    assert run_pooled(_set_up, 2, block, backend=None) == [0, 1]


def test_blocks_for_one_process_run(capsys):
    (block,) = code_blocks(PAGES["usage.md"], "one process")
    names: dict = {}
    exec(compile(block, "usage.md", "exec"), names)
    algorithm, error, sent = capsys.readouterr().out.split()
    assert algorithm == "sra" and 0.15 < float(error) < 0.17 and int(sent) > 0
    assert names["restored"].shape == (100_000,)


def test_indented_calls_of_the_usage_page_are_valid():
    """One-line examples outside of blocks."""
    calls = re.findall(r"^    (CGXState\(.*\))$", PAGES["usage.md"], re.MULTILINE)
    from cgx_utils import CGXState

    rules, feedback = (repr(eval(call, {"CGXState": CGXState})) for call in calls)
    assert "overrides={'embed': {'bits': 8}" in rules
    assert "error_feedback=bf16" in feedback


def test_every_python_block_is_run():
    for path in DOCUMENTS:
        text = path.read_text()
        assert text.count("```python") == len(re.findall(r"<!-- run: .* -->\n```python", text)), (
            path
        )
