"""fewbit.util: modules that are replaced, tensors and bytes of a graph; and FewBit's example."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from tests.docs.documents import ROOT, code_blocks
from torch_cgx.compat import fewbit
from torch_cgx.compat.fewbit import util


def _nested() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Sequential(nn.Linear(4, 4)))


def test_the_order_and_paths_of_visits() -> None:
    seen: list[tuple[str, str]] = []

    def look(module: nn.Module, path: str) -> nn.Module:
        seen.append((path, type(module).__name__))
        return module

    model = _nested()
    assert util.map_module(model, look) is model
    assert [path for path, _ in seen] == ["/0", "/1", "/2/0", "/2", "/"]
    assert dict(seen)["/1"] == "GELU" and dict(seen)["/"] == "Sequential"
    for pattern, wanted in (
        ("/2", ["/2/0", "/2"]),
        (r".*/0$", ["/0", "/2/0"]),
        ("2", []),  # from the start
        ("/$", ["/"]),
    ):
        seen.clear()
        util.map_module(model, look, pattern)
        assert [path for path, _ in seen] == wanted


def test_modules_are_replaced_and_so_is_the_root() -> None:
    model: Any = _nested()
    inner = model[2]
    found: Any = util.map_module(model, lambda m, path: nn.Identity() if path == "/2/0" else m)
    assert found is model and model[2] is inner and isinstance(inner[0], nn.Identity)
    assert isinstance(util.map_module(model, lambda m: nn.Identity(), "/$"), nn.Identity)
    assert isinstance(util.map_module(nn.GELU(), lambda m: fewbit.GELU()), fewbit.GELU)
    holes = nn.Module()
    holes.add_module("none", None)
    assert util.map_module(holes, lambda m: m) is holes


def test_parents_see_children_that_are_replaced() -> None:
    kinds: list[str] = []

    def swap(module: nn.Module) -> nn.Module:
        if isinstance(module, nn.GELU):
            return nn.SiLU()
        kinds.extend(type(child).__name__ for child in module.children())
        return module

    util.map_module(_nested(), swap)
    assert "SiLU" in kinds and "GELU" not in kinds


def test_an_error_leaves_the_model_as_it_was() -> None:
    model = _nested()
    before = list(model.modules())

    def fail(module: nn.Module, path: str) -> Any:
        return 3 if path == "/2/0" else nn.Identity()

    with pytest.raises(ValueError, match="int for /2/0"):
        util.map_module(model, fail)
    assert [a is b for a, b in zip(model.modules(), before, strict=True)] == [True] * len(before)

    def stop(module: nn.Module, path: str) -> nn.Module:
        if path == "/2":
            raise KeyboardInterrupt
        return nn.Identity()

    with pytest.raises(KeyboardInterrupt):
        util.map_module(model, stop)
    assert list(model.modules()) == before


def test_convert_linear_keeps_parameters_and_the_mode() -> None:
    tied = nn.Linear(6, 6, bias=False, dtype=torch.float64).eval()
    model = nn.Sequential(tied, nn.GELU(), nn.Linear(6, 6, False, dtype=torch.float64))
    model[2].weight = tied.weight
    convert = functools.partial(util.convert_linear, ctor=fewbit.LinearGRP, proj_dim_ratio=0.5)
    util.map_module(model, convert)
    assert all(isinstance(model[i], fewbit.LinearGRP) for i in (0, 2))
    assert model[0].weight is tied.weight is model[2].weight and len(list(model.parameters())) == 1
    assert not model[0].training and model[2].training and model[0].bias is None
    assert model[0].matmul == "gaussian" and model[0].weight.dtype == torch.float64
    gelu = nn.GELU()
    assert util.convert_linear(gelu, fewbit.LinearGRP, proj_dim_ratio=0.5) is gelu
    biased = nn.Linear(3, 2)
    crs = util.convert_linear(biased, fewbit.LinearCRS, proj_dim=2)
    assert crs.bias is biased.bias and crs.proj_dim == 2


class _Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = nn.functional.scaled_dot_product_attention(
            self.query(x), self.key(x), self.value(x)
        )
        return self.out(found)


class _GELUActivation(nn.Module):
    """As transformers has it: not a torch.nn.GELU."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(x)


class _Encoder(nn.Module):
    def __init__(self, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, width)
        self.layer = nn.ModuleList(
            nn.Sequential(
                _Attention(width),
                nn.LayerNorm(width),
                nn.Linear(width, 4 * width),
                _GELUActivation(),
                nn.Linear(4 * width, width),
            )
            for _ in range(layers)
        )
        self.classifier = nn.Linear(width, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layer:
            x = x + layer(x)
        return self.classifier(x.mean(1))


def test_fewbits_example_with_the_import_changed() -> None:
    torch.manual_seed(0)
    model: Any = _Encoder()
    tokens = torch.randint(50, (64, 12))
    targets = (tokens < 25).float().mean(1).gt(0.5).long()
    with util.memory_usage_hooks() as plain:
        logits = model(tokens)

    convert_gelu = lambda m: fewbit.GELU() if isinstance(m, _GELUActivation) else m  # noqa: E731
    model = fewbit.map_module(model, convert_gelu)
    model = fewbit.map_module(
        model,
        lambda m: util.convert_linear(m, fewbit.RandomizedLinear, proj_dim_ratio=0.2),
        "/layer",
    )
    kinds = [type(one).__name__ for one in model.modules()]
    assert kinds.count("LinearGRP") == 12 and kinds.count("GELU") == 2
    assert type(model.classifier) is nn.Linear
    assert torch.equal(model(tokens), logits)
    with util.memory_usage_hooks() as less:
        model(tokens)
    assert less.forward < 0.6 * plain.forward

    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = []
    for _ in range(40):
        loss = nn.functional.cross_entropy(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_the_example_of_the_docs_runs() -> None:
    (block,) = code_blocks((ROOT / "docs" / "compatibility.md").read_text(), "alone")
    names: dict[str, Any] = {}
    exec(compile(block, "compatibility.md", "exec"), names)
    model = names["model"]
    assert isinstance(model.activation, fewbit.GELU)
    for layer in (model.linear1, model.linear2):
        assert isinstance(layer, fewbit.LinearGRP) and layer.weight.grad is not None


def _graph() -> tuple[torch.Tensor, nn.Sequential, torch.Tensor]:
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))
    x = torch.randn(3, 8, requires_grad=True)
    return model(x), model, x


def test_v17_bytes_of_a_graph() -> None:
    y, model, x = _graph()
    assert util.estimate_memory_usage(y) == 260
    # The inputs of both layers and both weights.
    assert util.estimate_memory_usage(y, saved_only=True) == 96 + 48 + 128 + 16
    assert {id(one) for one in util.teniter(y)} == {id(x), *map(id, model.parameters())}
    y.sum().backward()
    assert util.estimate_memory_usage(y, saved_only=True) == 0
    assert list(util.teniter(x)) == [x] and list(util.teniter(x.detach())) == []


def test_tensors_that_nodes_have_saved() -> None:
    y, model, x = _graph()
    leaves = list(util.teniter(y))
    saved = list(util.teniter(y, include_ordinary=False, include_saved=True))
    assert len(saved) == 4 and any(one.shape == (3, 4) for one in saved)
    both = list(util.teniter(y, include_saved=True))
    assert len(both) >= len(leaves) + 1
    layer = fewbit.LinearGRP(8, 4, proj_dim=2)
    projected = list(util.teniter(layer(x), False, True))
    assert any(one.shape == (2, 8) for one in projected)


def test_each_node_is_visited_once() -> None:
    x = torch.randn(3, requires_grad=True)
    y = x.exp()
    names: list[str] = []
    util.traverse(y * y + y, lambda node: names.append(node.name()))
    assert sorted(names) == sorted(
        ["AddBackward0", "MulBackward0", "ExpBackward0", "torch::autograd::AccumulateGrad"]
    )
    util.traverse(x, lambda node: names.clear())
    assert names


def test_hooked_memory_usage() -> None:
    x = torch.randn(100, requires_grad=True)
    with util.memory_usage_hooks() as usage:
        y = x.exp().sin()
    assert isinstance(usage, util.HookedMemoryUsage)
    assert (usage.forward, usage.backward, usage.value) == (800, 0, 800)
    y.sum().backward()
    assert (usage.forward, usage.backward, usage.value) == (800, 800, 0)
    assert repr(usage) == "HookedMemoryUsage(forward=800, backward=800)"
    assert x.grad is not None
    torch.testing.assert_close(x.grad, (x.exp().cos() * x.exp()).detach())


def test_convert_linear_refuses_weights_that_are_no_parameters() -> None:
    for module in (parametrizations.weight_norm(nn.Linear(4, 4)), nn.LazyLinear(4)):
        with pytest.raises(ValueError, match="is not made yet, or is computed"):
            util.convert_linear(module, fewbit.RandomizedLinear, proj_dim_ratio=0.5)
