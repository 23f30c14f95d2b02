"""QuantLinear: each of its three products against ones of operands that emulate.cast has cast."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
import torch
import torch.nn.functional as F

from tests.emulate.gemm import operands
from tests.emulate.gemm.operands import FORMATS, PARTS, draw
from torch_cgx import emulate

ROWS, K, N = 21, 40, 24  # no multiples of 16 or 32


def layer(inputs, dtype=torch.float64, **options):
    made = emulate.QuantLinear(K, N, inputs=inputs, dtype=dtype, **options)
    with torch.no_grad():
        made.weight.copy_(draw(N, K, seed=1))
        made.bias.copy_(draw(N, seed=3))
    return made


def results(made, x, grad):
    x = x.clone().requires_grad_()
    y = made(x)
    y.backward(grad)
    return y.detach(), x.grad, made.weight.grad


@pytest.mark.parametrize("formats", [*FORMATS.values(), PARTS], ids=[*FORMATS, "parts"])
def test_each_product_has_its_operands_in_blocks_along_its_contraction(formats):
    made, x, grad = layer(formats), draw(ROWS, K), draw(ROWS, N, seed=2)
    expected = operands.linear(x, made.weight.detach(), made.bias.detach(), grad, formats)
    for found, wanted in zip(results(made, x, grad), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert torch.equal(made.bias.grad, grad.sum(0))  # exact


def test_blocks_along_another_axis_are_other_values():
    """Else the test above would prove nothing."""
    x, w, grad = draw(ROWS, K), draw(N, K, seed=1), draw(ROWS, N, seed=2)
    for one in (x, w, grad):
        for format in ("mxfp4", "nvfp4"):
            across, along = (operands.cast(one, format, axis) for axis in (0, 1))
            assert not torch.allclose(across, along, rtol=1e-2)


@pytest.mark.parametrize("part", ["forward", "dgrad", "wgrad"])
def test_one_product_alone(part):
    formats = {name: dict.fromkeys(names) for name, names in PARTS.items()}
    formats[part] = PARTS[part]
    made, x, grad = layer({part: PARTS[part]}), draw(ROWS, K), draw(ROWS, N, seed=2)
    expected = operands.linear(x, made.weight.detach(), made.bias.detach(), grad, formats)
    for found, wanted in zip(results(made, x, grad), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("operand", ["input", "weight", "gradient"])
def test_one_operand_alone(operand):
    formats = {
        part: {name: "mxfp4" if name == operand else None for name in names}
        for part, names in PARTS.items()
    }
    made, x, grad = layer({operand: "mxfp4"}), draw(ROWS, K), draw(ROWS, N, seed=2)
    expected = operands.linear(x, made.weight.detach(), made.bias.detach(), grad, formats)
    for found, wanted in zip(results(made, x, grad), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(K,), (2, K), (2, 3, 4, K), (0, K), (2, 0, K)])
@pytest.mark.parametrize("formats", ["mxfp4", PARTS, "smaq"], ids=["mxfp4", "parts", "smaq"])
def test_any_number_of_dimensions(shape, formats):
    made, x = layer(formats), draw(*shape)
    y, dx, dw = results(made, x, torch.ones(*shape[:-1], N, dtype=torch.float64))
    assert (y.shape, dx.shape, dw.shape) == ((*shape[:-1], N), x.shape, (N, K))
    if x.numel() == 0:
        assert (dw == 0).all()
        return
    flat = results(layer(formats), x.reshape(-1, K), y.new_ones(x.numel() // K, N))
    if formats != "smaq":  # whose random numbers are others in each pass, but not in the first
        made = layer(formats)
    for one, other in zip((y, dx, dw), flat, strict=True):
        assert torch.equal(one.reshape(other.shape), other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_types_are_widened(dtype):
    """Products of the operands in float32, rounded once to the type."""
    made = layer("mxfp8_e4m3", dtype)
    x, grad = draw(ROWS, K, dtype=dtype), draw(ROWS, N, seed=2, dtype=dtype)
    w, b = made.weight.detach().float(), made.bias.detach().float()
    expected = operands.linear(x.float(), w, b, grad.float(), "mxfp8_e4m3")
    for found, wanted in zip(results(made, x, grad), expected, strict=True):
        assert found.dtype == dtype
        step = torch.finfo(dtype).eps
        torch.testing.assert_close(found.double(), wanted.double(), rtol=4 * step, atol=1e-3 * step)


def test_exact_operands_are_as_torch_has_them():
    made, plain = layer(None, torch.float32), torch.nn.Linear(K, N)
    plain.load_state_dict(made.state_dict())
    x, grad = draw(ROWS, K, dtype=torch.float32), draw(ROWS, N, seed=2, dtype=torch.float32)
    for found, wanted in zip(results(made, x, grad), results(plain, x, grad), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("frozen", ["input", "weight", "bias"])
def test_what_needs_no_gradient_gets_none(frozen):
    made, x = layer("mxfp4"), draw(ROWS, K)
    if frozen != "input":
        getattr(made, frozen).requires_grad_(False)
        x.requires_grad_()
    grad = draw(ROWS, N, seed=2)
    made(x).backward(grad)
    _, dx, dw = operands.linear(x.detach(), made.weight.detach(), None, grad, "mxfp4")
    expected = {"input": dx, "weight": dw, "bias": grad.sum(0)}
    for name, tensor in (("input", x), ("weight", made.weight), ("bias", made.bias)):
        if name == frozen:
            assert tensor.grad is None
        else:
            torch.testing.assert_close(tensor.grad, expected[name], rtol=1e-12, atol=1e-12)


def test_strides_do_not_matter():
    made, x, grad = layer("mxfp4"), draw(ROWS, K), draw(ROWS, N, seed=2)
    first = results(made, x, grad)
    turned = results(layer("mxfp4"), x.T.contiguous().T, grad.T.contiguous().T)
    for one, other in zip(first, turned, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    expanded = results(layer("mxfp4"), x, grad[:1].expand(ROWS, N))
    whole = results(layer("mxfp4"), x, grad[:1].repeat(ROWS, 1))
    for one, other in zip(expanded, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


# ---- Hadamard ----


@pytest.mark.parametrize("size", [2, 16, 256])
@pytest.mark.parametrize("dtype, close", [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_a_hadamard_transform_of_exact_operands_changes_nothing(size, dtype, close):
    """Also where it pads the tokens: 21 are no multiple of any of these."""
    made, x, grad = layer({"hadamard": size}, dtype), draw(ROWS, K), draw(ROWS, N, seed=2)
    x, grad = x.to(dtype), grad.to(dtype)
    dw = results(made, x, grad)[2]
    wanted = grad.double().T @ x.double()
    assert float((dw - wanted).norm() / wanted.norm()) < close


@pytest.mark.parametrize("size", [2, 4, 16, 128])
def test_the_matrix_is_orthonormal_with_random_signs(size):
    made = layer({"hadamard": size}, seed=3)
    matrix = made._rounding.matrix
    eye = torch.eye(size, dtype=torch.float64)
    torch.testing.assert_close(matrix @ matrix.T, eye, rtol=0, atol=1e-14)
    torch.testing.assert_close(matrix.abs(), torch.full_like(matrix, size**-0.5))
    other = layer({"hadamard": size}, seed=4)._rounding.matrix
    if size > 4:
        assert not torch.equal(matrix, other)
    assert torch.equal(matrix, layer({"hadamard": size}, seed=3)._rounding.matrix)


def test_a_hadamard_transform_is_of_the_weights_gradient_alone():
    """y and dx have the bits of a layer without; dw is of rotated operands, cast along tokens."""
    x, grad = draw(32, K), draw(32, N, seed=2)
    made = layer({"input": "mxfp4", "gradient": "mxfp4", "hadamard": 16})
    plain = layer({"input": "mxfp4", "gradient": "mxfp4"})
    found, without = results(made, x, grad), results(plain, x, grad)
    assert torch.equal(found[0], without[0]) and torch.equal(found[1], without[1])
    turn = torch.block_diag(*[made._rounding.matrix] * 2)
    a, b = operands.cast(turn @ grad, "mxfp4", 0), operands.cast(turn @ x, "mxfp4", 0)
    torch.testing.assert_close(found[2], a.T @ b, rtol=1e-12, atol=1e-12)


# ---- random numbers ----

# Scales by which nothing saturates, since that is a bias.
RANDOM = emulate.preset("mxfp4", rounding="stochastic", scale_rounding="rceil")


def test_stochastic_gradients_are_unbiased_and_others_in_each_step():
    made, x, grad = layer({"gradient": RANDOM}), draw(ROWS, K), draw(ROWS, N, seed=2)
    found = []
    for _ in range(300):
        made.weight.grad = None
        found.append(results(made, x, grad)[1:])
    for which, wanted in ((0, grad @ made.weight.detach()), (1, grad.T @ x)):
        draws = torch.stack([one[which] for one in found])
        assert not torch.equal(draws[0], draws[1])
        error, spread = draws.mean(0) - wanted, draws.std(0) / 300**0.5
        assert float((error / spread).abs().max()) < 6
        assert float((error / spread).square().mean()) < 1.5  # of a normal distribution, 1


def test_the_two_products_of_a_gradient_draw_numbers_of_their_own():
    """With exact inputs and weights, dgrad and wgrad show the gradient that each has used."""
    eye = torch.eye(K, dtype=torch.float64)
    made = emulate.QuantLinear(
        K,
        K,
        bias=False,
        dtype=torch.float64,
        inputs={"gradient": emulate.preset("e2m1", rounding="stochastic")},
    )
    with torch.no_grad():
        made.weight.copy_(eye)
    grad = draw(K, K, seed=3).clamp(-5, 5)
    _, dx, dw = results(made, eye, grad)
    assert set(dx.unique().abs().tolist()) <= {0, 0.5, 1, 1.5, 2, 3, 4, 6}
    assert not torch.equal(dx, dw.T)


def test_a_seed_repeats_a_training_and_another_one_does_not():
    x, grad = draw(ROWS, K), draw(ROWS, N, seed=2)

    def run(seed):
        made = layer({"gradient": RANDOM}, seed=seed)
        return [results(made, x, grad)[1] for _ in range(3)]

    first, again, other = run(5), run(5), run(6)
    for one, same, third in zip(first, again, other, strict=True):
        assert torch.equal(one, same) and not torch.equal(one, third)


def test_evaluation_repeats_itself_and_counts_for_nothing():
    x = draw(ROWS, K)
    made, same = (layer({"input": RANDOM}) for _ in range(2))
    first = made(x)
    made.eval()
    with torch.no_grad():
        assert torch.equal(made(x), made(x))
    made.train()
    assert torch.equal(first, same(x)) and torch.equal(made(x), same(x))
    assert not torch.equal(first, made(x))


def test_an_evaluation_mode_that_trains_draws_other_numbers_each_time():
    made = layer({"input": RANDOM}).eval()
    assert not torch.equal(made(draw(ROWS, K)), made(draw(ROWS, K)))


@pytest.mark.parametrize("cls", [emulate.QuantLinear, emulate.QuantConv2d])
def test_a_format_in_the_place_of_bias_is_refused(cls):
    sizes = (8, 8) if cls is emulate.QuantLinear else (8, 8, 3)
    with pytest.raises(TypeError, match="bias='mxfp4'; allowed: True, False"):
        cls(*sizes, bias="mxfp4")


# ---- copies ----


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_are_layers_of_their_own(how):
    inputs = {"input": {"format": "e4m3fn", "scale": "delayed", "history": 4}, "gradient": RANDOM}
    made, x, grad = layer(inputs), draw(ROWS, K), draw(ROWS, N, seed=2)
    results(made, 8 * x, grad)
    made.weight.grad = None
    copied = copy.deepcopy(made) if how == "deepcopy" else pickle.loads(pickle.dumps(made))
    first = [results(copied, x, grad) for _ in range(2)]
    made.weight.grad = None
    second = [results(made, x, grad) for _ in range(2)]
    for one, other in zip(first, second, strict=True):
        for a, b in zip(one[:2], other[:2], strict=True):
            assert torch.equal(a, b)
    del made
    gc.collect()
    assert copied(x).shape == (ROWS, N)


def test_the_state_dict_is_that_of_linear():
    made, plain = layer("nvfp4"), torch.nn.Linear(K, N, dtype=torch.float64)
    assert list(made.state_dict()) == list(plain.state_dict())
    plain.load_state_dict(made.state_dict())
    assert "nvfp4" in repr(made) and repr(made).startswith("QuantLinear(in_features=40")


def test_mistakes_are_torchs_own():
    made = layer("mxfp4", torch.float32)
    for x in (torch.zeros(3, K + 1), torch.zeros(3, K, dtype=torch.float64)):
        with pytest.raises(RuntimeError) as wanted:
            F.linear(x, made.weight, made.bias)
        with pytest.raises(RuntimeError, match=str(wanted.value)[:20]):
            made(x)
    y = made(torch.zeros(3, K, requires_grad=True))
    (grad,) = torch.autograd.grad(y.sum(), made.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable|does not require grad"):
        torch.autograd.grad(grad.sum(), made.weight)


@pytest.mark.parametrize(
    "options, error, text",
    [
        ({"inputs": "e4m3fm"}, ValueError, "inputs: format is 'e4m3fm'"),
        ({"inputs": 8}, TypeError, "inputs: format is 8, allowed"),
        ({"inputs": {"inpt": "e4m3fn"}}, ValueError, "inputs has the keys inpt; allowed: forward"),
        (
            {"inputs": {"input": "e4m3fn", "dgrad": "e5m2"}},
            ValueError,
            "inputs has the keys input, dgrad; allowed: forward, dgrad, wgrad, or input",
        ),
        (
            {"inputs": {"dgrad": {"input": "e5m2"}}},
            ValueError,
            r"inputs\['dgrad'\] has the keys input; allowed: gradient, weight",
        ),
        (
            {"inputs": {"hadamard": 12}},
            ValueError,
            "hadamard=12; allowed: 0, powers of two of 2 to",
        ),
        ({"inputs": {"hadamard": True}}, ValueError, "hadamard=True; allowed"),
        ({"inputs": {"hadamard": 512}}, ValueError, "hadamard=512; allowed"),
        ({"inputs": {"format": "e4m3fn"}}, ValueError, "allowed: a format, or a dict with format"),
        (
            {"inputs": {"format": "mxfp4", "scale": "current"}},
            ValueError,
            "format=block .*; allowed with a scale: a Float",
        ),
        (
            {"inputs": {"format": "e4m3fn", "scale": "late"}},
            ValueError,
            "scale='late'; allowed: current, delayed",
        ),
        (
            {"inputs": {"format": "e4m3fn", "scale": "delayed", "history": 0}},
            ValueError,
            "history=0; allowed: integers from 1",
        ),
        (
            {"inputs": {"format": "e4m3fn", "scale": "delayed", "margin": 1.5}},
            ValueError,
            "margin=1.5; allowed: integers from 0",
        ),
        ({"seed": -1}, ValueError, r"seed=-1; allowed: integers of 0 to 2\*\*64 - 1"),
        ({"seed": True}, ValueError, "seed=True; allowed"),
        ({"accumulate": "fp31"}, ValueError, "accumulate: format is 'fp31', allowed"),
        ({"kahan": True}, ValueError, "kahan=True with accumulate='fp32'"),
    ],
)
def test_arguments(options, error, text):
    with pytest.raises(error, match=text):
        layer(**{"inputs": None} | options)
