"""torch.compile of emulated models: recipes of GEMMs in one graph with eager's bits; models whose
outputs are cast run uncompiled, or are an error by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

from tests.emulate.gemm.operands import draw
from tests.emulate.training.models import equal, images, mlp, net, step
from torch_cgx import emulate

RANDOM = emulate.preset("mxfp4", rounding="stochastic")
X = draw(21, 24, dtype=torch.float32)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def trained(make, x, compiled, **formats):
    """Gradients of three steps, the state, and how many graphs there were."""
    model = make()
    emulation = emulate.apply(model, **formats, first_last="cast")
    counter = CompileCounterWithBackend("aot_eager")
    run = torch.compile(model, backend=counter, fullgraph=True) if compiled else model
    found = []
    for number in range(3):
        model.zero_grad()
        run((number + 1) * x).square().sum().backward()
        found.append([p.grad for p in model.parameters()])
    with torch.no_grad():
        model.eval()
        found.append([run(x)])
    return found, str(emulation.state_dict()), counter.frame_count


@pytest.mark.parametrize(
    "formats",
    [
        {"recipe": "nvfp4"},
        {"recipe": "fp8_delayed"},
        {"gemm": {"gradient": RANDOM}},
        {"gemm": {"input": "mxfp4", "accumulate": "fp16"}},
    ],
    ids=["nvfp4", "fp8_delayed", "gradients", "sums"],
)
def test_gemms_have_eagers_bits_in_one_graph(formats):
    eager, state, _ = trained(lambda: mlp(2), X, False, **formats)
    found, other, graphs = trained(lambda: mlp(2), X, True, **formats)
    assert all(map(equal, eager, found)) and state == other
    assert graphs == 2  # for training and evaluation
    if "random" in str(formats) or "nvfp4" in str(formats):
        assert not equal(found[0], found[1])


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 8, 4, padding="same", padding_mode="reflect")
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2, groups=2)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)

    def forward(self, x):
        return self.encoder(self.up(self.conv(x)).flatten(2).transpose(1, 2))


def test_convolutions_and_attention_in_one_graph():
    eager, *_ = trained(Mixed, images(2), False, recipe="nvfp4")
    found, _, graphs = trained(Mixed, images(2), True, recipe="nvfp4")
    for one, other in zip(eager, found, strict=True):
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert graphs == 2


def test_a_compiled_model_may_be_emulated_and_restored():
    """Also by its wrapper; what was compiled before does not run again."""
    model = mlp()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    plain = compiled(X)
    for target in (model, compiled):
        emulation = emulate.apply(target, recipe="mxfp4", first_last="cast")
        found = compiled(X)
        assert not torch.equal(found, plain) and torch.equal(found, model(X))
        emulation.remove()
        assert torch.equal(compiled(X), plain)


def test_autocast_and_checkpoints_in_a_graph():
    def run(model, x):
        with torch.autocast("cpu", torch.bfloat16):
            return checkpoint(model, x, use_reentrant=False)

    found = []
    for compiled in (False, True):
        model = mlp()
        emulate.apply(model, gemm={"gradient": RANDOM}, first_last="cast")
        call = torch.compile(run, backend="aot_eager", fullgraph=True) if compiled else run
        for _ in range(2):
            model.zero_grad()
            call(model, X).square().sum().backward()
            found.append([p.grad for p in model.parameters()])
    for eager, traced in zip(found[:2], found[2:], strict=True):
        for a, b in zip(eager, traced, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2 * float(b.abs().max()))


@pytest.mark.parametrize("inside", [False, True])
def test_outputs_that_are_cast_run_uncompiled(inside):
    """With the bits of a model that is not compiled, through a training."""
    found = []
    for compiled in (False, True):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        emulate.apply(model, optimizer, "smaq68")
        run = model
        if compiled and inside:
            model.block.compile(backend="aot_eager")
        elif compiled:
            run = torch.compile(model, backend="aot_eager")
        for _ in range(2):
            step(run, optimizer, images())
        found.append([p.detach() for p in model.parameters()])
    assert equal(*found)


def test_outputs_that_are_cast_in_a_whole_graph_are_an_error():
    model = mlp()
    emulation = emulate.apply(model, recipe="smaq68")
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    text = (
        "torch.compile of a model whose outputs torch_cgx.emulate.apply casts; allowed: recipes of"
    )
    with pytest.raises(Exception, match=text):
        compiled(X)
    assert model(X).isfinite().all()
    emulation.remove()
    assert torch.equal(compiled(X), model(X))


def test_a_compiled_step_of_an_optimizer():
    """Its casts are around it, not in its graph."""
    found = []
    for compiled in (False, True):
        model = mlp(2)
        optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(1e-2), momentum=0.9)
        emulate.apply(model, optimizer, gradients="e5m2", weights="bf16", optimizer_state="bf16")
        take = torch.compile(optimizer.step, backend="aot_eager") if compiled else optimizer.step
        for _ in range(2):
            model.zero_grad()
            model(X).square().mean().backward()
            take()
        found.append([p.detach() for p in model.parameters()])
        for p in model.parameters():
            assert torch.equal(p, emulate.cast(p.detach(), "bf16"))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=1e-3)
