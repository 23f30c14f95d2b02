"""`cgx simulate`: errors of recorded gradients, against numpy."""

import json

import numpy as np
import pytest
import torch

import torch_cgx
from tests.oracle import Spec, decode, encode
from torch_cgx.cli import main as cli


def _gradients(seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        "body.weight": torch.randn(64, 40, generator=generator),
        "body.bias": torch.randn(40, generator=generator),
        "head.weight": torch.randn(2048, 2, generator=generator).bfloat16(),
    }


def _save(path, value):
    torch.save(value, path)
    return str(path)


def test_errors_by_layer_of_gradients_of_each_rank(tmp_path, capsys):
    ranks = [_gradients(seed) for seed in range(3)]
    words = [
        "simulate",
        _save(tmp_path / "g.pt", ranks),
        "--codec",
        "maxmin,rotated",
        "--bits",
        "4",
    ]
    assert cli([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ranks"] == 3
    first, second = found["settings"]
    assert (first["codec"], second["codec"]) == ("maxmin", "rotated")
    assert first["exact"] == ["body.bias"] and first["errors"]["body.bias"] < 1e-6
    off = norm = 0.0
    for name in ranks[0]:
        values = [one[name].float().reshape(-1) for one in ranks]
        config = {"bits": 4} if name != "body.bias" else {"bits": 32}
        result = torch_cgx.simulate(values, config).result.double()
        exact = torch.stack(values).double().sum(0)
        error = float((result - exact).norm() / exact.norm())
        assert first["errors"][name] == pytest.approx(error, rel=1e-6, abs=1e-9)
        off += float((result - exact).square().sum())
        norm += float(exact.square().sum())
    assert first["error"] == pytest.approx((off / norm) ** 0.5, rel=1e-6)
    assert second["error"] < first["error"]


def test_a_tied_gradient_counts_once_and_wrappers_do_not_show(tmp_path, capsys):
    tied, other = torch.randn(64, 64), torch.randn(32, 64)
    ranks = [{"_orig_mod.embed": tied, "_orig_mod.a": other, "_orig_mod.head": tied}] * 2
    assert cli(["simulate", _save(tmp_path / "g.pt", ranks), "--bits", "4", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["settings"]
    assert list(found["errors"]) == ["embed", "a"]


def test_one_rank_of_equal_gradients_against_the_codec_model(tmp_path, capsys):
    one = {"w": torch.randn(32, 64, generator=torch.Generator().manual_seed(0))}
    assert cli(["simulate", _save(tmp_path / "g.pt", one), "--bits", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["settings"][0]
    x = one["w"].reshape(-1).numpy()
    spec = Spec(bits=2, bucket_size=512)
    rough = decode(encode(x, spec), x.size, spec).astype(np.float64)
    # Two ranks send equal values, so the sum is twice what one encoding gives.
    expected = np.linalg.norm(rough - x) / np.linalg.norm(x)
    assert found["errors"]["w"] == pytest.approx(expected, rel=1e-5)


def test_equal_gradients_are_the_best_case(tmp_path, capsys):
    """As the help says: those of different batches partly cancel, their errors do not."""
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(256, 1024, generator=generator)
    noise = [torch.randn(256, 1024, generator=generator) for _ in range(2)]
    errors = []
    for ranks in ([{"w": common}], [{"w": common + k * one} for one in noise for k in (-1, 1)]):
        file = _save(tmp_path / "g.pt", ranks)
        words = ["--ranks", "4", "--bits", "4", "--codec", "maxmin,rotated,trellis"]
        assert cli(["simulate", file, *words, "--json"]) == 0
        errors.append([one["error"] for one in json.loads(capsys.readouterr().out)["settings"]])
    assert len(errors[0]) == 3
    assert all(1.05 * equal < different for equal, different in zip(*errors, strict=True))
    assert cli(["simulate", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "that is the best case" in told and "worst case" not in told


def test_table(tmp_path, capsys):
    file = _save(tmp_path / "g.pt", _gradients(0))
    assert cli(["simulate", file, "--ranks", "4", "--hosts", "2", "--bits", "16,4,1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "4 ranks on 2 hosts, with equal gradients"
    assert lines[2].split() == "layer values bf16 16 maxmin 4 maxmin 1".split()
    assert lines[4].split() == "body.bias 40 exact exact exact".split()
    assert lines[-2].split()[:2] == ["all", "6696"]
    assert lines[-1].startswith("sent by rank 0")


def test_values_that_are_not_finite_are_named(tmp_path, capsys):
    gradients = _gradients(0)
    gradients["body.weight"][0, 0] = float("nan")
    assert cli(["simulate", _save(tmp_path / "g.pt", gradients), "--bits", "4"]) == 0
    assert "not finite" in capsys.readouterr().out


@pytest.mark.parametrize(
    "value, words, text",
    [
        (None, [], "cannot read"),
        (b"no tensors", [], "is no file of tensors"),
        (3, [], "a int; allowed: {name: gradient, ...}"),
        ({}, [], "allowed: {name: gradient"),
        ([], [], "an empty list"),
        ({"a": 1}, [], "'a' is no tensor of floating-point values"),
        ({"a": torch.ones(3, dtype=torch.int32)}, [], "'a' is no tensor of floating-point"),
        ([{"a": torch.ones(3)}, {"a": torch.ones(4)}], [], "rank 1: names or shapes differ"),
        ([{"a": torch.ones(3)}, {"b": torch.ones(3)}], [], "rank 1: names or shapes differ"),
        ([{"a": torch.ones(3)}] * 2, ["--ranks", "3"], "of 2 ranks; --ranks is 3"),
        ({"a": torch.ones(3)}, ["--hosts", "3"], "--hosts 3 is more than 2 ranks"),
        ({"a": torch.ones(3)}, ["--codec", "zip"], "no such codec"),
        ({"a": torch.ones(3)}, ["--ranks", "100000000"], "allowed: at most 1024"),
        ({"a": torch.ones(1).expand(1 << 26)}, ["--ranks", "1024"], "takes about 1536 GiB"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, value, words, text):
    file = tmp_path / "g.pt"
    if isinstance(value, bytes):
        file.write_bytes(value)
    elif value is not None:
        torch.save(value, file)
    assert cli(["simulate", str(file), *words]) == 1
    err = capsys.readouterr().err
    assert text in err and err.count("\n") == 1
