"""`cgx advise`: what it knows of a model, what it recommends, and how it fails."""

import dataclasses
import itertools
import json
import os
import textwrap
import types

import pytest
import torch

from cgx_utils import CGXState
from torch_cgx.cli import main as cli
from torch_cgx.cli.advise import choose, source
from torch_cgx.cost import Layer, buckets_of

MODULE = """
import torch

def make():
    return torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64))

def runs():
    model = make()
    return model, lambda: model(torch.randn(8, 64)).square().mean()

def fails():
    raise ZeroDivisionError("no data\\nmore")

def other():
    return 3

def empty():
    return torch.nn.ReLU()

def bad_step():
    model = make()
    return model, lambda: model(torch.randn(8, 63)).mean()

def diverges():
    model = make()
    return model, lambda: model(torch.randn(8, 64)).mean() * float("nan")
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    name = f"advised_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def advise(capsys, *words):
    assert cli(["advise", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def clock(monkeypatch):
    """Each look at it takes 0.1 ms: all steps are as long as each other, however busy the cores."""
    ticks = itertools.count()
    monkeypatch.setattr(
        source, "time", types.SimpleNamespace(perf_counter=lambda: 1e-4 * next(ticks))
    )


def test_steps_are_timed(module, capsys):
    found = advise(capsys, "--model", f"{module}:runs", "--link", "10mbit")
    assert 0 < found["compute_seconds"] < 30


def test_a_model_that_runs_is_measured(clock, module, capsys):
    found = advise(capsys, "--model", f"{module}:runs", "--link", "10mbit")
    assert found["parameters"] == 64 * 512 + 512 + 512 * 64 + 64
    assert found["buckets"] == [4 * found["parameters"]]
    assert found["compute_seconds"] == pytest.approx(5e-4)  # four gradients and the end
    assert found["error_source"] == "gradients of 4 batches"
    (table,) = found["links"]
    rows = {row["setting"]: row for row in table["rows"]}
    # 263 kB on a link of 1.25 MB/s.
    assert rows["gloo fp32"]["exposed_seconds"] == pytest.approx(0.224, rel=0.1)
    assert rows["cgx maxmin 4 bits"]["seconds"] < rows["cgx maxmin 8 bits"]["seconds"]
    assert 0.05 < rows["cgx rotated 4 bits"]["error"] < 0.2
    assert rows["cgx exact"]["error"] == 0.0
    assert table["recommended"] in ("cgx rotated 4 bits", "cgx maxmin 4 bits")
    assert " times as fast as gloo fp32" in table["why"]
    state = eval(table["code"][len("model.register_comm_hook(") : -len(", cgx_hook)")])
    assert isinstance(state, CGXState) and "bits=4" in repr(state)


def test_a_link_that_is_fast_enough_gets_no_compression(module, capsys):
    assert (
        cli(["advise", "--model", f"{module}:make", "--link", "100gbit", "--compute-ms", "50"]) == 0
    )
    assert "\n-> it does not help here: " in capsys.readouterr().out


def test_a_model_without_a_step_has_times_of_communication(module, capsys):
    found = advise(capsys, "--model", f"{module}:make")
    assert found["compute_seconds"] is None and found["error_source"] == "Gaussian values"
    assert [one["link"] for one in found["links"]] == [1e8, 1e9, 1e10]
    for one in found["links"]:
        for row in one["rows"]:
            assert row["seconds"] == row["exposed_seconds"]
    said = advise(capsys, "--model", f"{module}:make", "--compute-ms", "50")
    assert said["links"][2]["rows"][0]["seconds"] > 0.05


def test_an_error_limit_that_nothing_meets_is_said(module, capsys):
    found = advise(capsys, "--model", f"{module}:make", "--max-error", "1e-6")
    assert found["links"][0]["recommended"] is None
    assert "no setting from 4 bits up has an error of at most 1e-06" in found["links"][0]["why"]


@pytest.mark.parametrize("key", [None, "state_dict", "model"])
def test_checkpoints(tmp_path, capsys, key):
    state = torch.nn.Linear(300, 200).state_dict() | {"steps": torch.tensor(3)}
    torch.save(state if key is None else {key: state, "epoch": 3}, tmp_path / "c.pt")
    found = advise(capsys, "--checkpoint", str(tmp_path / "c.pt"), "--hosts", "4")
    assert (found["parameters"], found["layers"], found["hosts"]) == (60200, 2, 4)


def test_a_tied_weight_of_a_checkpoint_counts_once(tmp_path):
    model = torch.nn.Sequential(torch.nn.Embedding(64, 32), torch.nn.Linear(32, 64, bias=False))
    model[1].weight = model[0].weight
    state = {f"module._orig_mod.{name}": value for name, value in model.state_dict().items()}
    torch.save(state, tmp_path / "c.pt")
    found = source.load(None, tmp_path / "c.pt", "")
    assert [(layer.name, layer.shape) for layer in found.layers] == [("0.weight", (64, 32))]


def test_rules_are_those_of_the_hook():
    bucket = [Layer("w", (64, 64)), Layer("b", (4096,)), Layer("small", (8, 8))]
    payload = choose.payload_of(bucket, {"bits": 4, "bucket_size": 512}, 4, 1024)
    assert payload.values == 4096
    assert payload.nbytes == 4096 // 2 + 8 * 8 + 4 * (4096 + 64)
    assert choose.payload_of(bucket, None, 2, 1024).nbytes == 2 * (2 * 4096 + 64)


def test_moments_without_a_measurement_end_with_the_step():
    buckets = buckets_of([Layer("a", (1 << 20,)), Layer("b", (1 << 20,))])
    assert source._spread(buckets, 3.0) == pytest.approx((2.0, 3.0))


def row(name, config, seconds, error):
    return {"setting": name, "config": config, "seconds": seconds, "error": error, "vs_gloo": 2.0}


@pytest.mark.parametrize(
    "eight, four, recommended",
    [(5.0, 4.9, "8"), (5.0, 4.0, "4"), (9.8, 9.7, None), (12.0, 11.0, None)],
)
def test_fewer_bits_are_recommended_where_they_gain(eight, four, recommended):
    table = [
        row("gloo fp32", None, 10.0, 0.0),
        row("8", {"bits": 8}, eight, 0.01),
        row("4", {"bits": 4}, four, 0.1),
        row("2", {"bits": 2}, 0.1, 0.1),  # never, without a training that has tried it
    ]
    profile = source.Profile([], [], 1.0, "", (), "")
    found = choose.verdict(table, 0.25, profile, 1024)
    assert found["recommended"] == recommended
    assert ("it does not help here" in found["why"]) is (recommended is None)
    # Only a gain that is larger than the differences between the measured steps counts.
    noisy = choose.verdict(table, 0.25, dataclasses.replace(profile, spread=3.0), 1024)
    assert noisy["recommended"] is None
    if recommended is not None:
        assert "no clear gain" in noisy["why"] and "300 %" in noisy["why"]


@pytest.mark.parametrize(
    "words, status, text",
    [
        ([], 2, "one of the arguments --model --checkpoint is required"),
        (["--model", "train"], 1, "allowed: MODULE:FACTORY"),
        (["--model", "no_such_module:f"], 1, "ModuleNotFoundError: No module named"),
        (["--model", "MODULE:nothing"], 1, "AttributeError"),
        (["--model", "MODULE:fails"], 1, "ZeroDivisionError: no data"),
        (["--model", "MODULE:other"], 1, "an object of type int; allowed: a torch.nn.Module"),
        (["--model", "MODULE:empty"], 1, "has no parameters that are trained"),
        (["--model", "MODULE:bad_step"], 1, "step() failed: RuntimeError"),
        (["--model", "MODULE:diverges"], 1, "which is not finite"),
        (["--model", "MODULE:runs", "--compute-ms", "0.0001"], 1, "is less than the"),
        (["--model", "MODULE:make", "--link", "fast"], 2, "rate 'fast'; allowed: bits per second"),
        (["--model", "MODULE:make", "--measure"], 1, "--measure needs the ranks of a launcher"),
        (["--checkpoint", "/nowhere"], 1, "cannot read /nowhere"),
        (["--checkpoint", "FILE"], 1, "holds no floating-point tensors by name"),
    ],
)
def test_bad_input_is_one_line(module, tmp_path, capsys, words, status, text):
    torch.save([1, 2], tmp_path / "FILE")
    assert cli(["advise", *(word.replace("MODULE", module) for word in words)]) == status
    err = capsys.readouterr().err
    assert text in err and err.count("\n") == 1


def _measured(tmp_path, hosts):
    import subprocess

    from tests import warm
    from tests.distributed import ROOT

    (tmp_path / "m.py").write_text(MODULE)
    script = tmp_path / "run.py"
    script.write_text(
        "import os, sys\n"
        f"os.environ['CGX_HOST_ID'] = {hosts!r}.split(',')[int(os.environ['RANK'])]\n"
        "from torch_cgx.cli import main\n"
        "sys.exit(main(['advise', '--model', 'm:make', '--measure', '--json']))\n"
    )
    return subprocess.run(
        [*warm.python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        + [str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_link_is_measured_between_hosts(tmp_path):
    done = _measured(tmp_path, "a,b")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["hosts"], found["ranks_per_host"]) == (2, 1)
    assert 1e8 < found["links"][0]["link"] < 1e12  # the loopback interface


def test_one_host_has_no_link_to_measure(tmp_path):
    done = _measured(tmp_path, "a,a")
    assert done.returncode == 1
    assert "cgx advise: --measure: all 2 ranks are on one host" in done.stderr
