"""activations.memory of layers of transformers, and what each measure saves."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.activations.memory_cases import F32, Calls
from torch_cgx import codecs
from torch_cgx.activations import convert
from torch_cgx.activations.report.memory import memory

pytestmark = pytest.mark.usefixtures("one_thread")


BATCH, SEQUENCE, WIDTH, HEADS = 2, 128, 768, 12
UNIT = BATCH * SEQUENCE * WIDTH * F32


def heads(x):
    return x.view(BATCH, SEQUENCE, HEADS, -1).transpose(1, 2)


def joined(x):
    return x.transpose(1, 2).reshape(BATCH, SEQUENCE, WIDTH)


class BoolDropout(nn.Dropout):
    """As on a GPU: the mask has a byte per value."""

    def forward(self, x):
        return torch.native_dropout(x, self.p, True)[0]


class Bert(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.drop, self.drop1, self.drop2 = (dropout(0.1) for _ in range(3))
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.act, self.down = (
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.GELU(),
            nn.Linear(4 * WIDTH, WIDTH),
        )

    def forward(self, x):
        q, k, v = (heads(f(x)) for f in (self.q, self.k, self.v))
        weights = self.drop((q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])).softmax(-1))
        x = self.norm1(x + self.drop1(self.out(joined(weights @ v))))
        return self.norm2(x + self.drop2(self.down(self.act(self.up(x)))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = map(heads, self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(joined(F.scaled_dot_product_attention(q, k, v, is_causal=True)))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class FusedRMSNorm(nn.RMSNorm):
    """As on a GPU: keeps the input and a value per row. On the CPU torch keeps twice that."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            scale = x.square().mean(-1, keepdim=True).rsqrt()
            ctx.save_for_backward(x, weight, scale)
            return x * scale * weight

        @staticmethod
        def backward(ctx, grad):
            return grad, grad.flatten(0, -2).sum(0)

    def forward(self, x):
        return self.Function.apply(x, self.weight)


class GatedMLP(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.gate_proj = nn.Linear(WIDTH, hidden, bias=False)
        self.up_proj = nn.Linear(WIDTH, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, WIDTH, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Llama(nn.Module):
    def __init__(self, hidden, norm):
        super().__init__()
        self.norm1, self.norm2 = norm(WIDTH), norm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.mlp = GatedMLP(hidden)
        rates = 10000.0 ** -(torch.arange(0, 64, 2) / 64)
        angles = (torch.arange(SEQUENCE)[:, None] * rates).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def rotated(self, x):
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat((-b, a), -1) * self.sin

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (heads(f(y)) for f in (self.q, self.k, self.v))
        q, k = self.rotated(q), self.rotated(k)
        x = x + self.out(joined(F.scaled_dot_product_attention(q, k, v, is_causal=True)))
        return x + self.mlp(self.norm2(x))


LAYERS = {
    "bert": (
        lambda: Bert(BoolDropout),
        21,
        {"input of linear": 33, "attention": 33, "activation": 19, "norm": 10, "mask": 5},
    ),
    "bert, masks of the CPU": (
        lambda: Bert(nn.Dropout),
        24,
        {"input of linear": 29, "attention": 29, "activation": 17, "norm": 8, "mask": 17},
    ),
    "gpt": (
        Gpt,
        16,
        {"input of linear": 37, "attention": 25, "activation": 25, "norm": 13},
    ),
    "llama": (
        lambda: Llama(4 * WIDTH, FusedRMSNorm),
        24,
        {"input of linear": 25, "attention": 17, "activation": 17, "norm": 8, "gate": 33},
    ),
    # Inputs of linear layers 2 + 8/3, attention 4, activation 8/3, norms 2, gates 2 x 8/3 units.
    "llama, narrow": (
        lambda: Llama(2048, FusedRMSNorm),
        8 + 4 * 8 / 3,
        {"input of linear": 25, "attention": 21.4, "activation": 14.3, "norm": 10.7, "gate": 28.6},
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_transformers(name):
    make, units, shares = LAYERS[name]
    x = torch.randn(BATCH, SEQUENCE, WIDTH, requires_grad=True)
    report = memory(make(), x)
    assert report.total / UNIT == pytest.approx(units, abs=0.05)
    found = {kind: 100 * n / report.total for kind, n in report.by_kind.items()}
    assert found.keys() == shares.keys()
    assert all(abs(found[kind] - share) < 1 for kind, share in shares.items())
    assert report.peak > report.total


def measures(report):
    return {one["measure"]: one for one in report.savings}


LINEAR = "linear layers that keep a fifth of their input"


def test_savings_of_bert_by_hand():
    report = memory(Bert(nn.Dropout), torch.randn(BATCH, SEQUENCE, WIDTH, requires_grad=True))
    found = measures(report)
    wide, n = 4 * BATCH * SEQUENCE * WIDTH, BATCH * SEQUENCE * WIDTH
    act, masks = 4 * wide - 3 * wide // 8, 4 * n * F32
    # norm2's output is the layer's: no linear layer keeps it. Of each row's mean and scale, both
    # norms keep one. Masks: 2 units of heads, and 2.
    norms = n * F32 + 2 * BATCH * SEQUENCE * F32
    assert found["activation functions at 3 bits"]["bytes"] == act
    assert found["norms that keep their output"]["bytes"] == norms
    assert found["dropout that draws its mask again"]["bytes"] == masks
    assert found["all of these"]["bytes"] == act + norms + masks
    assert found["all of these"]["share"] == (act + norms + masks) / report.total
    assert found["all of these"]["line"] == (
        "activations.convert(model, activations=3, norms=True, dropout=True)"
    )
    codec = codecs.MaxMin(bits=4, bucket_size=256)
    kept = [one for one in report.storages if one.numel >= 1024]
    saved = sum(
        one.nbytes
        - (one.numel // 8 if one.saves[0].kind == "mask" else codec.encoded_bytes(one.numel))
        for one in kept
    )
    assert found["any saved tensor at 4 bits"]["bytes"] == saved > 0.85 * report.total
    config = '{"codec": "maxmin", "bits": 4, "bucket_size": 256}'
    line = f"with activations.compress_saved(config={config}):"
    assert found["any saved tensor at 4 bits"]["line"] == line


@pytest.mark.parametrize(
    "wanted",
    [{"activations": 3}, {"norms": True}, {"dropout": True}, {"gates": True}, {}],
    ids=lambda wanted: next(iter(wanted), "all"),
)
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_convert_saves_what_the_report_says(norm, wanted):
    from torch_cgx.activations.conversion.convert import convert

    model = nn.Sequential(Llama(256, norm), nn.Dropout(0.1), nn.Linear(WIDTH, 64), nn.GELU())
    x = torch.randn(BATCH, SEQUENCE, WIDTH, requires_grad=True)
    before = memory(model, x)
    every = {"activations": 3, "norms": True, "dropout": True, "gates": True}
    convert(model, **(wanted or every))
    after = memory(model, x)
    words = ", ".join(f"{name}={value}" for name, value in (wanted or every).items())
    lines = {one["line"]: one["bytes"] for one in before.savings}
    assert lines[f"activations.convert(model, {words})"] == before.total - after.total


def test_savings_of_a_gate_do_not_add_to_those_of_its_activation():
    found = measures(memory(GatedMLP(64), torch.randn(BATCH, SEQUENCE, WIDTH)))
    n = BATCH * SEQUENCE * 64
    assert found["gates that keep their inputs"]["bytes"] == 2 * n * F32
    assert found["activation functions at 3 bits"]["bytes"] == n * F32 - 3 * n // 8
    assert found["all of these"]["bytes"] == 2 * n * F32


def test_savings_need_that_nothing_else_keeps_the_tensor():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    found = measures(memory(model, torch.randn(64, 64)))
    # relu's result is the next input
    assert found.keys() == {"any saved tensor at 4 bits", LINEAR}
    found = measures(memory(model[:2], torch.randn(64, 64)))
    assert found["activation functions at 3 bits"]["bytes"] == 64 * 64 * F32 - 64 * 64 // 8  # 1 bit
    norm = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Tanh())
    found = measures(memory(norm, torch.randn(64, 64)))
    assert found["norms that keep their output"]["bytes"] == 64 * F32  # its means


def test_savings_of_linear_layers():
    model = nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 64), nn.Sigmoid())
    x = torch.randn(5, 20, 64)
    before = memory(model, x)
    # tanh keeps its result, which is the input of the second layer.
    assert measures(before)[LINEAR]["bytes"] == 100 * 64 * F32 - 20 * (64 * F32 + 4) - 64 * F32
    convert(model, linear=0.2, pattern="0")
    assert before.total - memory(model, x).total == measures(before)[LINEAR]["bytes"]


def test_functions_that_forward_calls_get_lines_of_their_own():
    def forward(self, x):
        y = F.dropout(F.gelu(self.linear(x)), 0.5)
        return self.linear(F.silu(y.sin()) * y.cos())

    found = measures(memory(Calls(forward, linear=nn.Linear(8, 8)), torch.randn(100, 8)))
    lines = [one["line"] for one in found.values()]
    assert lines[:4] == [
        "activations.functional.gelu(x, bits=3)",
        "activations.functional.silu(x, bits=3)",
        "activations.Dropout(p)",
        "activations.functional.swiglu(gate, up, weight, bias)",
    ]
    assert found["gelu in forward at 3 bits"]["bytes"] == 800 * F32 - 300
    assert found["dropout in forward that draws its mask again"]["bytes"] == 800 * F32
