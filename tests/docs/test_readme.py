"""README.md against the code: settings, numbers, commands, examples."""

from __future__ import annotations

import contextlib
import gc
import io
import re

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.distributed import run_pooled
from tests.docs.documents import DOCUMENTS, ROOT, code_blocks, marked, table
from torch_cgx import _C
from torch_cgx._environment import GONE, OTHERS

README = (ROOT / "README.md").read_text()
SETTINGS = {row["option"]: row for row in table(marked(README, "settings"))}
BUILD = {"CGX_CUDA_ARCHS", "CGX_MPI", "CGX_MPICC"}
TESTS = {f"CGX_TEST_{name}" for name in ("GPU", "HOSTS", "MPICH", "OPENMPI", "WARM")}


def test_every_setting_is_in_the_table_and_nothing_else():
    expected = {
        row["name"]: (row["variable"], row["default"] or "(empty)", row["per_call"])
        for row in _C.settings()
    }
    found = {
        name: (row["variable"], row["default"], {"call": True, "group": False}[row["read"]])
        for name, row in SETTINGS.items()
    }
    assert found == expected
    meanings = {row["name"]: row["meaning"] for row in _C.settings()}
    assert {name: row["meaning"] for name, row in SETTINGS.items()} == meanings
    assert [row["name"] for row in _C.settings() if not row["compared"]] == ["log", "host_id"]


def test_allowed_integers_are_those_of_the_code():
    checked = 0
    for name, row in SETTINGS.items():
        limits = re.fullmatch(r"(\d+) to (\d+)(?:\^(\d+) - 1)?", row["allowed"])
        if limits is None:
            continue
        low, high = int(limits[1]), int(limits[2])
        if limits[3]:
            high = high ** int(limits[3]) - 1
        for value in (low, high):
            assert getattr(torch_cgx.Options(**{name: value}), name) == value
        for value in (low - 1, high + 1):
            with pytest.raises(ValueError, match=name):
                torch_cgx.Options(**{name: value})
        checked += 1
    assert checked == 6


def test_allowed_names_are_those_of_the_code():
    kinds = ("codec", "rounding", "nonfinite", "collectives", "inner_communicator")
    kinds += ("cross_communicator", "inner_reduction", "cross_reduction", "cuda_backend")
    for name in kinds:
        with pytest.raises(ValueError) as refused:
            torch_cgx.Options(**{name: "something else"})
        allowed = re.search(r"of ([\w, ]+)$", str(refused.value))
        assert allowed is not None, str(refused.value)
        words = re.findall(r"\w+", SETTINGS[name]["allowed"])
        assert set(re.findall(r"\w+", allowed[1])) == set(words) - {
            "list",
            "of",
            "or",
            "none",
            "error",
        }


def test_every_variable_is_documented_and_exists():
    known = {row["variable"] for row in _C.settings()} | set(OTHERS) - BUILD
    gone = set(GONE)
    sources = [p for d in ("csrc", "torch_cgx", "cgx_utils") for p in (ROOT / d).rglob("*")]
    used = set()
    for path in sources:
        if path.suffix in {".cc", ".h", ".py"}:
            used |= set(re.findall(r'"(CGX_[A-Z_]*[A-Z])"', path.read_text()))
    assert used <= known | BUILD | gone, used - known
    for path in DOCUMENTS:
        named = set(re.findall(r"\bCGX_[A-Z_]+\b", path.read_text())) - {"CGX_HD"}  # a macro
        allowed = known | gone | BUILD | TESTS
        assert named <= allowed, (path.name, named - allowed)
    assert known | gone <= set(re.findall(r"\bCGX_[A-Z_]+\b", README))


def test_cpu_levels_are_those_of_the_code():
    sentence = README.split("`CGX_CPU_LEVEL` (")[1].split(", where")[0]
    documented = set(re.findall(r"`(\w+)`", sentence))
    names: set[str] = set()
    for path in (ROOT / "csrc" / "codec" / "cpu").glob("*.cc"):
        names |= set(re.findall(r'Kernels kKernels\{"(\w+)"', path.read_text()))
    assert documented == names >= set(_C.cpu_levels().split(","))


def _numbers(rows, keys):
    for row in rows:
        bits, bucket = int(row["bits"]), int(row[keys[0]])
        yield {"bits": bits, "bucket_size": bucket}, [float(row[key]) for key in keys[1:]]


def test_ratios_are_the_codecs():
    n = 1 << 20
    keys = ("bucket size", "ratio, fp32", "ratio, fp16/bf16")
    for config, (single, half) in _numbers(table(marked(README, "ratios")), keys):
        codec = torch_cgx.codecs.MaxMin(**config)
        assert single == pytest.approx(4 * n / codec.encoded_bytes(n), abs=0.005)
        assert half == pytest.approx(2 * n / codec.encoded_bytes(n, torch.float16), abs=0.005)


@pytest.mark.parametrize(
    "name, mark, keys",
    [
        (
            "README.md",
            "ratios",
            ("bucket size", "error, one-shot", "error, scatter-reduce-all-gather"),
        ),
        (
            "docs/numerics.md",
            "errors",
            ("bucket", "one-shot, 8 ranks", "scatter-reduce-all-gather, 8 ranks"),
        ),
    ],
)
def test_errors_are_those_of_gaussian_gradients(name, mark, keys):
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(1 << 16, generator=generator) for _ in range(8)]
    rows = table(marked((ROOT / name).read_text(), mark))
    assert len(rows) >= 6
    for config, errors in _numbers(rows, keys):
        for algorithm, error in zip(("oneshot", "sra"), errors, strict=True):
            found = torch_cgx.simulate(inputs, config, algorithm).error["relative_l2"]
            assert error == pytest.approx(found, rel=0.02), (config, algorithm)


def test_make_targets_exist():
    targets = re.findall(r"^\s+make (\w+)", README, re.MULTILINE)
    assert {"demo", "test"} <= set(targets)
    makefile = (ROOT / "Makefile").read_text()
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def _run_blocks(rank, world_size, blocks):
    names = {"__name__": "__main__"}
    with contextlib.redirect_stderr(io.StringIO()) as said:
        for block in blocks:
            exec(compile(block, "README.md", "exec"), names)
    if rank == 0 and world_size == 2:
        assert f"    {said.getvalue()}" in README, said.getvalue()
    counters = torch_cgx.stats()
    answer = {key: names[key].clone() for key in ("x",)}, counters["compressed_calls"]
    model = names["model"]
    model(torch.ones(4, 256)).sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    compressed = torch_cgx.stats()["compressed_calls"] - counters["compressed_calls"]
    names.clear()
    del model
    gc.collect()
    dist.destroy_process_group()
    return *answer, gradients, compressed


def test_blocks_for_two_ranks_run():
    blocks = code_blocks(README, "two ranks")
    assert len(blocks) == 3
    first, second = run_pooled(_run_blocks, 2, blocks, backend=None, timeout=120)
    # DDP's bucket and the three explicit calls; the new group counts for itself.
    assert first[1] == second[1] == 4
    assert torch.equal(first[0]["x"], second[0]["x"])
    assert all(torch.equal(a, b) for a, b in zip(first[2], second[2], strict=True))
    assert first[3] >= 1


def test_blocks_for_two_ranks_run_on_one():
    blocks = code_blocks(README, "two ranks")
    ((x, *_),) = run_pooled(_run_blocks, 1, blocks, backend=None)
    assert x["x"].isfinite().all()


def _set_up(rank, world_size, block):
    names: dict[str, object] = {}
    exec(compile(block, "launching.md", "exec"), names)
    return names["local_rank"]


def test_blocks_for_launched_ranks_run():
    (block,) = code_blocks((ROOT / "docs" / "launching.md").read_text(), "launched ranks")
    assert run_pooled(_set_up, 2, block, backend=None) == [0, 1]


def test_blocks_for_one_process_run(capsys):
    blocks = code_blocks(README, "one process")
    assert len(blocks) == 1
    names = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    algorithm, error, sent = capsys.readouterr().out.split()
    assert algorithm == "sra" and 0.15 < float(error) < 0.17 and int(sent) > 0
    assert names["restored"].shape == (100_000,)


def test_every_python_block_is_run():
    for path in DOCUMENTS:
        text = path.read_text()
        assert text.count("```python") == len(re.findall(r"<!-- run: .* -->\n```python", text)), (
            path
        )
