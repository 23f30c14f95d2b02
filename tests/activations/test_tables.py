"""Tables of few-bit activation functions: fits against published optima and closed forms,
codes, parity, errors."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.activations.few_bit_cases import FEWBIT_GELU
from torch_cgx.activations.tables import files
from torch_cgx.activations.tables.catalog import CATALOG, elu_row, softplus_row
from torch_cgx.activations.tables.table import Table, _unpickled

# The least integral over [-10, 10] of the squared error, 1 to 4 bits (Few-Bit Backward, ICML 2023).
OPTIMA = {
    "gelu": (0.14105, 0.04056, 0.01190, 0.00314),
    "silu": (0.21498, 0.04785, 0.01702, 0.00446),
    "selu": (0.25535, 0.10101, 0.01838, 0.00391),
    "softplus": (0.29022, 0.05405, 0.01212, 0.00290),
    "logsigmoid": (0.29022, 0.05405, 0.01212, 0.00290),
    "celu": (0.16217, 0.02512, 0.00517, 0.00119),
    "elu": (0.16217, 0.02512, 0.00517, 0.00119),
    "mish": (0.16882, 0.03998, 0.01359, 0.00360),
    "hardswish": (0.50000, 0.25204, 0.05556, 0.01021),
    "tanh": (1.0115, 0.11357, 0.02589, 0.00648),
    "tanhshrink": (1.0115, 0.11357, 0.02589, 0.00648),
    "sigmoid": (0.09650, 0.01301, 0.00308, 0.00078),
    "softsign": (0.45024, 0.09401, 0.02581, 0.00702),
}
WITH_PARITY = {
    "tanh": (0.15840, 0.03191, 0.00727, 0.00174),
    "tanhshrink": (0.15840, 0.03191, 0.00727, 0.00174),
    "sigmoid": (0.01807, 0.00378, 0.00088, 0.00021),
    "softsign": (0.12522, 0.03131, 0.00783, 0.00196),
}
TORCH = {
    **{name: getattr(F, name) for name in CATALOG if name != "gelu_tanh"},
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def _error(table, name, low=-10.0, high=10.0, n=400_001):
    """The objective by the midpoint rule, which shares nothing with the fit."""
    edges = np.linspace(low, high, n)
    x = 0.5 * (edges[1:] + edges[:-1])
    return float(((CATALOG[name].derivative(x) - table(x)) ** 2).mean() * (high - low))


@pytest.mark.parametrize("name", CATALOG)
def test_the_catalogue_is_torchs_function_and_its_gradient(name):
    x = np.concatenate([np.linspace(-30, 30, 4001) + 1e-3, [-1e-9, 1e-9]])
    given = torch.from_numpy(x).requires_grad_()
    y = TORCH[name](given)
    (slope,) = torch.autograd.grad(y.sum(), given)
    row = CATALOG[name]
    np.testing.assert_allclose(row.value(x), y.detach().numpy(), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(row.derivative(x), slope.numpy(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", CATALOG)
def test_parity_says_whether_the_derivative_is_even(name):
    x = np.linspace(0.1, 10, 100)
    row = CATALOG[name]
    assert np.allclose(row.derivative(x), row.derivative(-x), atol=1e-12) == row.parity


def test_the_catalogue_is_finite_far_out():
    x = np.array([-1e4, -800.0, -0.0, 0.0, 800.0, 1e4])
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for row in CATALOG.values():
            assert np.isfinite(row.derivative(x)).all() and np.isfinite(row.value(x)).all()


@pytest.mark.parametrize("name", OPTIMA)
def test_errors_are_the_published_optima(name, fitted):
    for bits, optimum in enumerate(OPTIMA[name], 1):
        again = CATALOG[name].parity
        table = Table.fit(name, bits) if again else fitted[name, bits]
        assert len(table.levels) == 2**bits
        assert abs(_error(table, name) - optimum) < 2e-5, bits
        assert table.error(name) == pytest.approx(_error(table, name), rel=1e-4)


@pytest.mark.parametrize("name", WITH_PARITY)
def test_errors_with_parity_are_the_published_optima(name, fitted):
    for bits, optimum in enumerate(WITH_PARITY[name], 1):
        table = fitted[name, bits]
        assert table.parity and len(table.levels) == 2**bits
        assert abs(_error(table, name) - optimum) < 2e-5, bits
        assert table.error(name) == pytest.approx(_error(table, name), rel=1e-4)


def test_borders_are_the_high_precision_optimum(fitted):
    gelu = [fitted["gelu", bits] for bits in range(1, 5)]
    close = {"rtol": 0, "atol": 1e-7}
    np.testing.assert_allclose(gelu[1].borders, (-0.4690264, 0, 0.4690264), **close)
    np.testing.assert_allclose(
        gelu[1].levels, (-0.0157241, 0.3195254, 0.6804746, 1.0157241), **close
    )
    upper = (0.3263160, 0.7110919, 2.3980782)
    np.testing.assert_allclose(gelu[2].borders, (*(-b for b in upper[::-1]), 0, *upper), **close)
    np.testing.assert_allclose(
        gelu[2].levels,
        (-0.0025996, -0.0888231, 0.1252296, 0.3720927)
        + (0.6279073, 0.8747704, 1.0888231, 1.0025996),
        **close,
    )
    upper = (0.1550304, 0.3152634, 0.4875040, 0.6834632, 0.9318838, 2.0530776, 2.6850973)
    np.testing.assert_allclose(gelu[3].borders, (*(-b for b in upper[::-1]), 0, *upper), **close)
    levels = (
        0.5616013,
        0.6838201,
        0.8029669,
        0.9165229,
        1.0209016,
        1.1093496,
        1.0496720,
        1.0013308,
    )
    np.testing.assert_allclose(gelu[3].levels[8:], levels, **close)
    np.testing.assert_allclose(gelu[3].levels[7::-1], 1 - np.array(levels), **close)
    silu = fitted["silu", 3]
    np.testing.assert_allclose(silu.borders[3:], (0, 0.5121875, 1.1379074, 4.4863483), **close)
    np.testing.assert_allclose(
        silu.levels[4:], (0.6253191, 0.8653252, 1.0675581, 1.0089790), **close
    )


def test_levels_are_mean_slopes(fitted):
    for (name, _), table in fitted.items():
        low = 0.0 if table.parity else -10.0
        edges = np.array([low, *table.borders, 10.0])
        slopes = np.diff(CATALOG[name].value(edges)) / np.diff(edges)
        np.testing.assert_allclose(table.levels, slopes, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name, bits", [("gelu", 4), ("selu", 3), ("hardswish", 4), ("mish", 2)])
def test_no_other_borders_are_better(name, bits, fitted):
    """With mean slopes as levels the error is a constant less the sum of rise^2 / width."""

    def gain(borders):
        edges = np.concatenate([[-10.0], borders, [10.0]])
        rise, width = np.diff(CATALOG[name].value(edges)), np.diff(edges)
        return (rise**2 / width).sum()

    random = np.random.default_rng(0)
    best = np.array(fitted[name, bits].borders)
    for _ in range(200):
        scale = 10 ** random.uniform(-4, 0.5)
        other = np.sort(np.clip(best + scale * random.normal(size=best.size), -9.99, 9.99))
        if (np.diff(other) > 0).all():
            assert gain(other) <= gain(best) + 1e-12


def test_tables_that_fewbit_missed_are_near_the_optimum(fitted):
    assert _error(fitted["selu", 2], "selu") < 0.102  # 0.380 in FewBit's file
    assert _error(fitted["selu", 3], "selu") < 0.019  # 0.099
    assert _error(fitted["selu", 4], "selu") < 0.004  # 0.036
    assert _error(fitted["hardswish", 4], "hardswish") < 0.0103  # 0.260


def test_a_normal_weight_is_better_where_inputs_are_normal():
    x = np.random.default_rng(1).normal(size=200_000)
    for name in ("gelu", "silu"):
        slope = CATALOG[name].derivative(x)
        by_weight = {}
        for weight in ("uniform", "normal", x, torch.from_numpy(x).half()):
            table = Table.fit(name, 3, weight=weight)
            key = weight if isinstance(weight, str) else type(weight).__name__
            by_weight[key] = float(((slope - table(x)) ** 2).mean())
        assert by_weight["normal"] < 0.7 * by_weight["uniform"]
        for key in ("ndarray", "Tensor"):
            assert by_weight[key] == pytest.approx(by_weight["normal"], rel=0.01)
        table = Table.fit(name, 3, weight="normal")
        assert table.error(name, weight="normal") == pytest.approx(by_weight["normal"], rel=0.02)
        assert table.error(name, weight=x) == pytest.approx(by_weight["normal"], rel=0.02)


def test_inputs_beyond_the_domain_count_at_its_ends():
    x = np.array([0.5] * 10 + [1e6] * 30)
    table = Table.fit("hardswish", 1, weight=x)
    assert table(np.array([0.5, 10.0])).tolist() == pytest.approx([0.5 / 3 + 0.5, 1.0], abs=1e-2)


def test_a_callable_weight_a_domain_and_a_derivative():
    def weight(x):
        return (x > 1).double()

    table = Table.fit(F.gelu, 2, weight=weight)
    assert table.name == "gelu"
    assert table.error("gelu", weight=weight) < Table.fit(F.gelu, 2).error("gelu", weight=weight)
    wide = Table.fit("gelu", 3, domain=(-100, 100))
    # FewBit's domain, and so nearly its table.
    np.testing.assert_allclose(wide.borders, FEWBIT_GELU.borders, rtol=0, atol=2e-3)
    cube = Table.fit(lambda x: x**3, 1, derivative=lambda x: 2 * x, domain=(0, 1), name="square")
    assert Table.fit(lambda x: x**2, 1).name == ""
    # f' = 1.5 sqrt(x) is NaN left of the domain: at the best border f' is the mean level.
    root = Table.fit(lambda x: x**1.5, 1, domain=(0, 1))
    assert 1.5 * root.borders[0] ** 0.5 == pytest.approx(sum(root.levels) / 2, abs=1e-9)
    assert (cube.name, cube.borders) == ("square", (0.5,))
    assert cube.levels == pytest.approx((0.5, 1.5), rel=1e-14)


@pytest.mark.parametrize(
    "function, borders, levels",
    [
        (F.relu, (0,), (0, 1)),
        (lambda x: F.leaky_relu(x - 1 / 3), (1 / 3,), (0.01, 1)),
        (F.relu6, (0, 6), (0, 1, 0)),
        (F.hardshrink, (-0.5, 0.5), (1, 0, 1)),
        (F.hardsigmoid, (-3, 3), (0, 1 / 6, 0)),
    ],
)
def test_jumps_are_found_and_no_level_is_wasted(function, borders, levels):
    table = Table.fit(function, 3)
    np.testing.assert_allclose(table.borders, borders, rtol=0, atol=1e-11)
    # torch's 1/6 is of float32.
    np.testing.assert_allclose(table.levels, levels, rtol=0, atol=1e-8)
    assert table.bits == (len(levels) - 1).bit_length()


@pytest.mark.parametrize("name", CATALOG)
def test_a_fit_by_autograd_is_the_catalogues(name, fitted):
    table = Table.fit(TORCH[name], 3, parity=CATALOG[name].parity)
    np.testing.assert_allclose(table.borders, fitted[name, 3].borders, rtol=0, atol=1e-6)
    np.testing.assert_allclose(table.levels, fitted[name, 3].levels, rtol=0, atol=1e-6)


def test_a_fit_does_not_depend_on_the_grad_mode():
    with torch.no_grad():
        first = Table.fit(F.silu, 1)
    with torch.inference_mode():
        assert Table.fit(F.silu, 1) == first


def test_gradients_of_fewbits_gelu_table():
    x = torch.tensor([-3, -1, -0.5, 0, 0.5, 1, 3])
    expected = [-1.93991e-4, -0.0882791, 0.125684, 0.372314, 0.874451, 1.08835, 1.00019]
    assert FEWBIT_GELU(x).tolist() == pytest.approx(expected, rel=1e-12)


def test_a_value_equal_to_a_border_belongs_below_it():
    table = files.shipped("hardswish", 3)
    x = [-3, -2, -1, 0, 1, 2, 3, 3.0000002, math.inf, -math.inf]
    expected = [0, -1 / 3, 0, 1 / 3, 2 / 3, 1, 4 / 3, 1, 1, 0]
    np.testing.assert_allclose(table(x), expected, rtol=0, atol=1e-11)
    assert np.isnan(table([math.nan])).all()
    for dtype in (torch.float64, torch.float32):
        np.testing.assert_allclose(table(torch.tensor(x, dtype=dtype)), expected, atol=1e-11)


def test_steps():
    table = Table((0, 2), (1, 3, -2))
    assert table([-5, -0.5, 0, 0.1, 2, 2.1, 9]).tolist() == [1, 1, 1, 3, 3, -2, -2]
    assert Table.from_fewbit((-1, 0, 2, 5), (1, 3, -2)) == table
    assert table.codes([-5, 0, 0.1, 9]).tolist() == [0, 0, 1, 2]
    assert table.bits == 2


def test_borders_as_of_fewbit():
    assert Table.from_fewbit([-9, 0, 9], [0.25, 0.75])(np.array([1, 2])).tolist() == [0.75, 0.75]
    with pytest.raises(ValueError, match=r"^1 borders for 2 levels; allowed: 3, the two ends"):
        Table.from_fewbit([0.0], [0.25, 0.75])


def test_parity_compares_the_absolute_value():
    table = Table((0, 1), (3, 2, 1), parity=True)
    x = [-math.inf, -1.5, -1, -0.5, -0.0, 0, 0.5, 1, 1.5, math.inf, math.nan]
    assert table(x)[:-1].tolist() == [1, 1, 2, 2, 3, 3, 2, 2, 1, 1]
    assert np.isnan(table(x)[-1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int8])
def test_tensors_of_any_shape_give_float64(dtype):
    x = torch.arange(-4, 4, dtype=dtype).reshape(2, 4).T
    y = FEWBIT_GELU(x)
    assert (y.dtype, y.shape) == (torch.float64, x.shape)
    np.testing.assert_array_equal(y, FEWBIT_GELU(x.double().numpy()))


def test_tables_are_values():
    table = Table([0], np.array([1, 2]))
    assert table == Table((0.0,), (1.0, 2.0)) and hash(table) == hash(Table((0.0,), (1.0, 2.0)))
    assert table != Table((0.0,), (1.0, 2.0), parity=True)
    assert copy.deepcopy(FEWBIT_GELU) == pickle.loads(pickle.dumps(FEWBIT_GELU)) == FEWBIT_GELU
    with pytest.raises(AttributeError):
        table.parity = True


def test_a_pickle_of_another_version_is_named():
    _, (version, *fields) = FEWBIT_GELU.__reduce__()
    with pytest.raises(ValueError, match=r"Table of version 2; this torch_cgx reads version 1"):
        _unpickled(version + 1, *fields)


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        (((), (1,)), ValueError, "1 levels; allowed: 2 to 16"),
        ((range(16), range(17)), ValueError, "17 levels; allowed: 2 to 16"),
        (((0, 1), (1, 2)), ValueError, "2 borders for 2 levels; allowed: 1"),
        (((0, 2, 1), (1, 2, 3, 4)), ValueError, r"borders\[2\]=1.0 after 2.0; allowed: strictly"),
        (((0, 0), (1, 2, 3)), ValueError, r"borders\[1\]=0.0 after 0.0"),
        (((0, math.nan), (1, 2, 3)), ValueError, r"borders\[1\]=nan; allowed: finite"),
        (((0,), (1, math.inf)), ValueError, r"levels\[1\]=inf; allowed: finite"),
        (((-1,), (1, 2), True), ValueError, r"borders\[0\]=-1.0; allowed with parity=True: 0"),
        (((0,), (1, "x")), TypeError, r"levels=\(1, 'x'\); allowed: a sequence of numbers"),
        ((0, (1, 2)), TypeError, "borders=0; allowed: a sequence"),
        (((0,), (1, 2), 1), TypeError, "parity=1; allowed: True, False"),
        (((0,), (1, 2), False, 3), TypeError, "name=3; allowed: a str"),
    ],
)
def test_wrong_tables_are_named(arguments, error, text):
    with pytest.raises(error, match=text):
        Table(*arguments)


@pytest.mark.parametrize(
    "function, bits, options, error, text",
    [
        ("gelu", 0, {}, ValueError, "bits=0; allowed: integers from 1 to 4"),
        ("gelu", 5, {}, ValueError, "bits=5; allowed"),
        ("gelu", True, {}, ValueError, "bits=True; allowed"),
        ("gelu", 2.0, {}, ValueError, r"bits=2\.0; allowed"),
        ("gelux", 2, {}, ValueError, "function 'gelux'; allowed: celu, elu, gelu,"),
        (3, 2, {}, TypeError, "function: int; allowed: a name, or a callable"),
        (torch.sum, 2, {}, ValueError, "no gradient for each value"),
        (torch.ones_like, 2, {}, ValueError, "no gradient for each value"),
        (torch.sqrt, 2, {}, ValueError, "its derivative is nan at -9.99"),
        ("gelu", 2, {"derivative": torch.sign}, ValueError, "'gelu', which has its own"),
        (F.gelu, 2, {"derivative": torch.sum}, ValueError, "derivative: not a tensor of its"),
        ("gelu", 2, {"parity": True}, ValueError, "parity=True with a derivative that is not even"),
        (
            "tanh",
            2,
            {"parity": True, "domain": (0, 9)},
            ValueError,
            "allowed with parity=True: sym",
        ),
        ("gelu", 2, {"domain": (1, 1)}, ValueError, r"domain=\(1, 1\); allowed: two finite"),
        ("gelu", 2, {"domain": (0, math.inf)}, ValueError, "allowed: two finite numbers"),
        ("gelu", 2, {"domain": 3}, ValueError, "domain=3; allowed: two finite numbers"),
        ("gelu", 2, {"points": 9}, ValueError, "points=9; allowed: integers from 64 to 2048"),
        ("gelu", 2, {"weight": "cauchy"}, ValueError, "weight='cauchy'; allowed: 'uniform'"),
        ("gelu", 2, {"weight": 3}, ValueError, "weight=3; allowed: 'uniform'"),
        ("gelu", 2, {"weight": torch.neg}, ValueError, "weight: -0.0.* allowed: finite, 0 or more"),
        ("gelu", 2, {"weight": torch.zeros_like}, ValueError, "weight: 0 everywhere"),
        ("gelu", 2, {"weight": torch.tensor([])}, ValueError, "weight: no inputs"),
        ("gelu", 2, {"weight": np.array([1, np.nan])}, ValueError, "1 of 2 inputs are NaN"),
    ],
)
def test_wrong_fits_are_named(function, bits, options, error, text):
    with pytest.raises(error, match=text):
        Table.fit(function, bits, **options)


def test_rows_of_parameters_are_torchs_functions():
    x = np.linspace(-9, 9, 500)
    given = torch.from_numpy(x)
    np.testing.assert_allclose(elu_row(0.4).value(x), F.elu(given, 0.4), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(
        softplus_row(2.0).value(x), F.softplus(given, 1, 2), rtol=1e-12, atol=1e-15
    )


def test_domains_that_a_fit_cannot_resolve_are_refused() -> None:
    for domain in ((1.0, 1.0 + 1e-15), (-1e300, 1e300), (0.0, 1e7)):
        with pytest.raises(ValueError, match="domain="):
            Table.fit("gelu", 2, domain=domain)
