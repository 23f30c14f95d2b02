"""The benchmark of the codecs on a GPU: its arithmetic by hand, and a run on the fake device, with
the CPU's clock. Speeds are not tested.
"""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import _command, gpu_codec
from tests.benchmarks import runs
from tests.device import fake_cuda

N = 1 << 14


def _run(rank, world_size, folder):
    files = ["--json", f"{folder}/out.json", "--plot", f"{folder}/out.png"]
    options = ["--numel", str(N), "--rounds", "2", "--calls", "2", "--bits", "1", "4"]
    gpu_codec.main(["--quick", *options, *files], gpu_codec.Wall())


@fake_cuda.needed
def test_a_run_on_the_fake_device(tmp_path):
    fake_cuda.run(_run, 1, str(tmp_path), backend=None)
    document = json.loads((tmp_path / "out.json").read_text())
    assert (tmp_path / "out.png").exists()
    facts = document["machine"]
    assert facts["gpu"] == "a fake CUDA device" and facts["clock"] == "wall"
    rows = {row["name"]: row for row in document["rows"]}
    names = ["copy fp32", *(f"{op} fp32 {b}" for b in (1, 4) for op in gpu_ops)]
    names += ["copy bf16", *(f"{op} bf16 {b}" for b in (1, 4) for op in gpu_ops[:2])]
    assert list(rows) == names
    # 8 bytes per bucket of 512 values, and the codes.
    payload = N // 512 * 8 + N // 2
    for name, moved in {
        "copy fp32": 8 * N,
        "encode fp32 4": 4 * N + payload,
        "decode fp32 4": 4 * N + payload,
        "decode+add fp32 4": 8 * N + payload,
        "copy bf16": 4 * N,
        "encode bf16 4": 2 * N + payload,
    }.items():
        row = rows[name]
        size = (4 if "fp32" in name else 2) * N
        assert row["gb_per_s"] * row["seconds"] * 1e9 == pytest.approx(size)
        assert row["moved_gb_per_s"] * row["seconds"] * 1e9 == pytest.approx(moved)
        copy = rows[f"copy {row['dtype']}"]["moved_gb_per_s"]
        assert row["of_copy"] == pytest.approx(row["moved_gb_per_s"] / copy)
        assert 0 < row["q1"] <= row["gb_per_s"] <= row["q3"]
    assert len(document["targets"]) == 9 and not any(r["met"] is None for r in document["targets"])


gpu_ops = ["encode", "decode", "decode+add"]


def test_targets_are_met_or_not():
    def row(bits, of_copy, operation="encode", dtype="fp32"):
        return {"operation": operation, "dtype": dtype, "bits": bits, "of_copy": of_copy}

    rows = [row(None, 1.0, "copy"), row(1, 0.9), row(4, 0.79), row(8, 0.75)]
    met = {r["ratio"]: (r["measured"], r["met"]) for r in gpu_codec.against_targets(rows)}
    assert met == {
        "encode fp32, 4 bits, bytes moved / copy": (0.79, False),
        "encode fp32, slowest / fastest width": (0.833, False),
    }
    rows = [row(4, 0.8, "decode+add"), row(1, 0.7, "decode+add")]
    met = {r["ratio"]: r["met"] for r in gpu_codec.against_targets(rows)}
    assert list(met.values()) == [True, True]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so(tmp_path):
    done = runs.python("benchmarks/gpu_codec.py", "--json", str(tmp_path / "out.json"))
    assert done.returncode == 0 and not (tmp_path / "out.json").exists()
    assert done.stderr.startswith(_command.NOTHING) and "no CUDA device" in done.stderr
