"""Bits before and after, and what casts did to values, against casts by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tests.emulate.gemm import operands
from tests.emulate.gemm.operands import PARTS, by_part
from tests.emulate.training.models import images, mlp, net, step
from tests.emulate.training.test_layers import seen
from torch_cgx import activations, emulate

X = operands.draw(21, 40)


def measured(model, **given):
    emulation = emulate.apply(model, **given)
    emulation.measure = True
    return emulation


def statistics(x, format, axis):
    """Of a cast along a dimension, where the engine has it."""
    x = x.movedim(axis, -1).contiguous()
    if isinstance(format, dict):
        x = x * (448.0 / float(x.abs().max()))
        format = format["format"]
    return emulate.cast(x, format, statistics=True)[1]


def test_records_are_the_statistics_of_each_cast():
    model = mlp(3, 40, torch.float64)
    emulation = measured(model, gemm=PARTS)
    tensors = seen(model, X.clone())["2"]
    of, weight = by_part(PARTS), model[2].weight.detach()
    casts = {
        "forward.input": (tensors["x"], 1),
        "forward.weight": (weight, 1),
        "dgrad.gradient": (tensors["dy"], 1),
        "dgrad.weight": (weight, 0),
        "wgrad.gradient": (tensors["dy"], 0),
        "wgrad.input": (tensors["x"], 0),
    }
    assert sorted(emulation.records) == sorted(f"2/{name}" for name in casts)
    for name, (x, axis) in casts.items():
        part, operand = name.split(".")
        wanted, found = statistics(x, of[part][operand], axis), emulation.records[f"2/{name}"]
        assert set(found) == {"underflowed", "saturated", "sqnr", "amax", "bits"}
        assert found["underflowed"] == wanted.underflowed and found["saturated"] == wanted.saturated
        assert found["sqnr"] == pytest.approx(wanted.sqnr, rel=1e-6)
        if isinstance(of[part][operand], str):
            assert found["amax"] == wanted.amax


def test_the_amax_of_a_scaled_tensor_is_its_own():
    """Not of the values that the scale has made 448 of."""
    for scale in ("current", "delayed"):
        model = mlp(1, 40, torch.float64)
        given = {"format": "e4m3fn", "scale": scale}
        emulation = measured(model, gemm={"forward": {"input": given}}, first_last="cast")
        model(X), model(X)
        assert emulation.records["0/forward.input"]["amax"] == pytest.approx(
            float(X.abs().max()), rel=1e-6
        )
        # Of a delayed scale, rounding may put the greatest value beyond the range.
        limit = 0 if scale == "current" else 1 / X.numel()
        assert emulation.records["0/forward.input"]["saturated"] <= limit


def test_records_of_what_memory_holds():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    emulation = measured(model, optimizer=optimizer, recipe="smaq68")
    step(model, optimizer, images())
    kinds = {}
    for name in emulation.records:
        layer, _, tensor = name.rpartition("/")
        kinds.setdefault(tensor, []).append(layer)
    every = [name for name, _ in model.named_parameters()]
    exempt = {name for name in every if name.startswith(("bn", "block.1"))}
    outputs = ["conv", "bn", "relu", "block.0", "block.1", "drop", "head"]
    assert kinds["activations"] == outputs and sorted(kinds["gradient_maps"]) == sorted(outputs)
    assert kinds["gradients"] == every and kinds["weights"] == [n for n in every if n not in exempt]
    for tensor in ("optimizer_state.exp_avg", "optimizer_state.exp_avg_sq"):
        assert kinds[tensor] == every
    assert len(kinds) == 6
    records = emulation.records
    assert all(20 < records[f"{name}/activations"]["sqnr"] for name in outputs[:-1])
    small = records["head.bias/weights"]  # five values, which SmaQ leaves
    assert small["bits"] == 32 and small["sqnr"] == math.inf


def test_records_are_of_the_measured_steps_alone():
    model = mlp(3, 40, torch.float64)
    emulation = emulate.apply(model, recipe="mxfp8")
    model(X)
    assert emulation.records == {} and not emulation.measure
    emulation.measure = True
    model(X)
    found = emulation.records
    assert len(found) == 2
    emulation.measure = False
    model(100 * X)
    assert emulation.records is found
    emulation.measure = True
    assert emulation.records == {}


def test_what_is_measured_is_what_is_trained():
    found = []
    for measure in (False, True):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        emulation = emulate.apply(model, optimizer, "smaq68", gemm="mxfp4", seed=2)
        emulation.measure = measure
        for _ in range(2):
            step(model, optimizer, images())
        found.append([p.detach() for p in model.parameters()])
    assert all(map(torch.equal, *found))


# ---- bits ----


@pytest.mark.parametrize(
    "recipe, bits",
    [
        ("bf16", 16),
        ("mxfp8", 8.25),
        ("mxfp6", 6.25),
        ("mxfp4", 4.25),
        ("fp8_current", 8 + 32 / 64**2),
        ("fp8_delayed", 8 + 32 / 64**2),
    ],
)
def test_bits_of_recipes_with_their_scales(recipe, bits):
    """Of square matrices of whole blocks."""
    model = nn.Sequential(nn.Linear(64, 64))
    given = emulate.recipe(recipe)
    emulation = emulate.apply(model, gemm=given["gemm"], first_last="cast")
    model(torch.randn(64, 64).requires_grad_()).sum().backward()
    ledger = emulation.ledger()
    assert ledger.bits == pytest.approx(bits, rel=1e-6) and ledger.ratio == pytest.approx(32 / bits)
    assert {row.values for row in ledger.rows} == {64 * 64}


def test_bits_of_nvfp4():
    """Blocks of 16 with 8 bits, of 16 x 16 for weights, and 32 bits of each tensor."""
    model = nn.Sequential(nn.Linear(64, 64))
    emulation = emulate.apply(model, recipe="nvfp4", first_last="cast")
    model(torch.randn(64, 64).requires_grad_()).sum().backward()
    bits = {row.tensor: row.after / row.values for row in emulation.ledger().rows}
    assert bits.pop("forward.weight") == 4 + 8 / 256 + 32 / 64**2
    assert set(bits) == {"forward.input", "dgrad.gradient", "wgrad.input", "wgrad.gradient"}
    assert set(bits.values()) == {4.5 + 32 / 64**2}


def test_blocks_that_are_not_whole_are_counted_whole():
    model = nn.Sequential(nn.Linear(40, 24))
    emulation = emulate.apply(model, gemm={"forward": {"input": "mxfp4"}}, first_last="cast")
    model(torch.randn(3, 40))
    (row,) = emulation.ledger().rows
    assert (row.values, row.before, row.after) == (120, 120 * 32, 120 * 4 + 3 * 2 * 8)


@pytest.mark.parametrize("measure", [False, True])
@pytest.mark.parametrize(
    "main, outlier, ratio", [(6, 8, 4.82), (5, 7, 5.68), (4, 6, 6.9), (3, 5, 8.8)]
)
def test_smaq_on_gaussian_values(main, outlier, ratio, measure):
    """V9 of seeds.md 2.5: 32 / (m + (o - m) erfc(1 / sqrt 2)); measured, of the values."""
    model = nn.Sequential(nn.Identity())
    emulation = emulate.apply(model, activations=emulate.ZScore(main, outlier))
    emulation.measure = measure
    model(torch.randn(1000, 1000, generator=torch.Generator().manual_seed(0)))
    assert emulation.ledger().ratio == pytest.approx(ratio, abs=0.02)


def test_bits_of_measured_values_are_their_own():
    """Of a tensor that is not normal: one outlier of 10000, or none."""
    emulation = measured(model := nn.Sequential(nn.Identity()), activations=emulate.ZScore(6, 8))
    x = torch.zeros(100, 100)
    x[0, 0] = 1
    model(x)
    assert emulation.ledger().after == 6 * 10000 + 2 + 64
    assert emulation.records["0/activations"]["bits"] == emulation.ledger().bits


def test_types_of_16_bits_are_before_16_bits():
    model = nn.Sequential(nn.Linear(64, 64, dtype=torch.bfloat16))
    emulation = emulate.apply(model, gemm="mxfp4", first_last="cast")
    model(torch.randn(64, 64, dtype=torch.bfloat16))
    ledger = emulation.ledger()
    assert ledger.values == 2 * 64 * 64 and ledger.after == 4.25 * ledger.values
    assert ledger.before == 16 * ledger.values  # of memory, not of the product


def test_the_table():
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    emulation = emulate.apply(model, optimizer, "smaq68")
    assert emulation.ledger().rows == [] and emulation.ledger().ratio == 1
    assert emulation.ledger().bits == 0 and "all" in str(emulation.ledger())
    step(model, optimizer, images())
    ledger = emulation.ledger()
    lines = str(ledger).splitlines()
    assert lines[0].split() == "tensor values MiB before MiB after bits ratio".split()
    kinds = [line.split()[0] for line in lines[1:]]
    assert kinds[:2] == ["activations", "gradient_maps"] and kinds[-1] == "all"
    assert set(kinds) == {*ledger.kinds(), "all"} and len(ledger.kinds()) == 6
    whole = lines[-1].split()
    assert int(whole[1]) == ledger.values and float(whole[-1]) == pytest.approx(
        ledger.ratio, abs=0.01
    )
    assert float(whole[-2]) == pytest.approx(ledger.bits, abs=0.01)
    long = ledger.table(layers=True).splitlines()
    assert len(long) == len(ledger.rows) + 2 and long[1].split()[:2] == ["conv", "activations"]
    sums = ledger.kinds()
    assert sum(one.after for one in sums.values()) == pytest.approx(ledger.after)
    step(model, optimizer, images(12))  # the last cast counts
    assert emulation.ledger().kinds()["activations"].values == 2 * sums["activations"].values
    assert emulation.ledger().kinds()["weights"] == sums["weights"]


@pytest.mark.parametrize("way", ["context", "compress"])
def test_one_table_with_what_compress_saved_keeps(way):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(3)))
    emulation = emulate.apply(model, gemm="mxfp8_e4m3", first_last="cast")
    x = torch.randn(64, 64).requires_grad_()
    if way == "context":
        with activations.compress_saved() as saved:
            loss = model(x).square().mean()
        loss.backward()
    else:
        saved = activations.compress(model)
        model(x).square().mean().backward()
        saved.remove() if hasattr(saved, "remove") else None
    plain, both = emulation.ledger(), emulation.ledger(saved=saved)
    kept = both.kinds()["saved for backward"]
    assert kept.before == 8 * saved.bytes_saved > kept.after == 8 * saved.bytes_kept > 0
    for layers in (False, True):
        lines = both.table(layers).splitlines()
        assert len(lines) == len(plain.table(layers).splitlines()) + 1
        assert "saved for backward" in lines[-2]
        whole = lines[-1].split()
        after = (plain.after + kept.after) / 2**23
        assert float(whole[-3]) == pytest.approx(after, abs=0.001)
        assert float(whole[-2]) == pytest.approx(
            plain.bits, abs=0.01
        )  # of values that were counted
    assert both.bits == plain.bits and "saved" not in str(plain)


def test_evaluations_do_not_add_up():
    """Each is a pass of its own, as each step of a training is."""
    model = nn.Sequential(nn.MultiheadAttention(8, 2), nn.Linear(8, 8))
    model.forward = lambda x, y: model[1](model[0](x, y, y)[0])
    emulation = emulate.apply(model, recipe="mxfp8", first_last="cast", activations="bf16")
    x, y = torch.randn(2, 3, 4, 8)
    found = []
    for _ in range(3):
        model.train()(x, y).sum().backward()
        found.append({r.tensor: r.values for r in emulation.ledger().rows if r.layer != "1"})
        with torch.no_grad():
            for _ in range(3):
                model.eval()(x, y)
        found.append({r.tensor: r.values for r in emulation.ledger().rows if r.layer != "1"})
    assert all(one == found[0] for one in found)
    assert emulation.ledger().rows[0].values == 3 * 3 * 4 * 8  # query, key and value


def test_other_things_than_saved_tensors():
    emulation = emulate.apply(mlp(), recipe="mxfp8")
    with pytest.raises(
        TypeError, match="saved is of type int; allowed: compress_saved, the result"
    ):
        emulation.ledger(saved=3)
