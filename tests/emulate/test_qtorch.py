"""The rule of qtorch 0.2, which SmaQ's baselines used and no variant has, by V11 of SmaQ's vectors;
and where it differs from e5m2.
"""

from __future__ import annotations

import math

import torch

from tests.emulate.oracles import spread
from torch_cgx import emulate

INF, NAN = math.inf, math.nan
LARGEST, LEAST = 57344.0, 2.0**-15


def nearest(x: float) -> float:
    """float_quantize(exp=5, man=2, rounding="nearest"): ties away from zero, no subnormals but one
    binade more, everything beyond saturates, NaN too.
    """
    if not abs(x) <= LARGEST:
        return math.copysign(LARGEST, x)
    if x == 0:
        return 0.0
    _, e = math.frexp(x)
    step = math.ldexp(1, e - 3)
    y = math.copysign(math.floor(abs(x) / step + 0.5) * step, x)
    if abs(y) < LEAST:
        return math.copysign(LEAST, x) if abs(y) > LEAST / 2 else 0.0
    return math.copysign(min(abs(y), LARGEST), x)


def checked(x: float) -> float:
    """As SmaQ called it: every result equal to the largest number becomes infinite."""
    y = nearest(x)
    return INF if y == LARGEST else y


V11 = [
    (1.125, 1.25),
    (1.375, 1.5),
    (6e4, LARGEST),
    (1e6, LARGEST),
    (-1e6, -LARGEST),
    (2.0**-15, 2.0**-15),
    (2.0**-16, 0.0),
    (INF, LARGEST),
    (NAN, LARGEST),
]


def test_vectors():
    """V11"""
    assert [nearest(x) for x, _ in V11] == [y for _, y in V11]
    assert [checked(x) for x in (57344.0, INF, NAN, -1e6)] == [INF, INF, INF, -LARGEST]


def test_what_e5m2_makes_of_the_same_values():
    """Ties to even, subnormal numbers, infinities and NaN; saturated as `overflow` says."""
    x = torch.tensor([x for x, _ in V11])
    expected = [1.0, 1.5, LARGEST, INF, -INF, 2.0**-15, 2.0**-16, INF, NAN]
    for format, beyond in (
        (emulate.e5m2, INF),
        (emulate.Float(5, 2, overflow="saturate"), LARGEST),
    ):
        y = emulate.cast(x, format)
        wanted = torch.tensor(expected)
        wanted = torch.where(wanted.isinf(), wanted.sign() * beyond, wanted)
        assert torch.equal(y.nan_to_num(7, INF, -INF), wanted.nan_to_num(7, INF, -INF))


def test_half_of_all_ties_go_the_other_way():
    grid = emulate.cast(torch.from_numpy(spread(1 << 12)), "e5m2").abs().unique()
    normal = grid[(grid >= 2**-14) & grid.isfinite()].double()
    ties = (normal[1:] + normal[:-1]) / 2
    ours = emulate.cast(ties, emulate.e5m2)
    theirs = torch.tensor([nearest(float(x)) for x in ties], dtype=torch.float64)
    assert len(ties) == 119 and int((ours != theirs).sum()) == 60
    assert (theirs >= ours).all()


def test_the_probability_of_a_stochastic_rounding():
    """V11: 1.1 is .4 of the way from 1 to 1.25."""
    x = torch.full((100_000,), 1.1)
    y = emulate.cast(x, emulate.preset("e5m2", rounding="stochastic"))
    assert y.unique().tolist() == [1, 1.25]
    share = float((y == 1.25).double().mean())
    assert abs(share - 0.4) < 4 * math.sqrt(0.4 * 0.6 / 100_000)
