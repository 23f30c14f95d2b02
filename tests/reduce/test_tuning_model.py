"""The autotuner's model with made-up numbers, against the formulas written anew."""

from __future__ import annotations

import itertools
import random

import pytest

from tests import _machinery


def seconds_of(link, cost, codec, raw):
    """The model, as docs/configuration.md states it."""
    per_value = [
        c * cost["compressed"] + r * (1 - cost["compressed"])
        for c, r in zip(codec, raw, strict=True)
    ]
    coding = cost["encoded"] * per_value[0] + cost["decoded"] * per_value[1]
    wire = cost["bytes"] * link["seconds_per_byte"]
    overlap = max(wire, coding) + min(wire, coding) / cost["rounds"]
    fixed = cost["steps"] * link["latency"] + cost["values"] * link["seconds_per_value"]
    return fixed + overlap


def two_ranks(values, bits, rounds=None):
    """A one-shot all-reduce of fp32 between two ranks, with messages of 512 KiB."""
    payload = 4 * values if bits == 32 else values * bits / 8 + 8 * values / 512
    return {
        "steps": 1.0,
        "bytes": payload,
        "values": float(values),
        "encoded": float(values),
        "decoded": 2.0 * values,
        "rounds": rounds or max(1.0, payload // (512 << 10)),
        "compressed": 0.0 if bits == 32 else 1.0,
    }


def made_up(seed):
    choose = random.Random(seed)
    link = {
        "latency": 10 ** choose.uniform(-6, -2),
        "seconds_per_byte": 10 ** choose.uniform(-11, -6),
        "seconds_per_value": choose.choice([0.0, 10 ** choose.uniform(-11, -9)]),
    }
    raw = (10 ** choose.uniform(-11, -10), 10 ** choose.uniform(-11, -10))
    codec = (raw[0] * choose.uniform(1, 20), raw[1] * choose.uniform(1, 20))
    return link, codec, raw


@pytest.mark.parametrize("seed", range(200))
def test_predictions_are_those_of_the_formula(seed):
    link, codec, raw = made_up(seed)
    for values, bits in itertools.product((256, 65536, 1 << 24), (32, 4, 1)):
        cost = two_ranks(values, bits)
        wanted = seconds_of(link, cost, codec, raw)
        assert _machinery.tuning_predict(link, cost, codec, raw) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("seed", range(200))
def test_a_fit_finds_the_model_that_the_measurements_were_made_with(seed):
    link, codec, raw = made_up(seed)
    costs = two_ranks(256, 32), two_ranks(1 << 20, 32), two_ranks(1 << 20, 4)
    # A small message without bytes and values: what is left is the latency.
    costs[0].update(bytes=0.0, values=0.0, encoded=0.0, decoded=0.0)
    times = [
        seconds_of(link, cost, c, raw) for cost, c in zip(costs, (raw, raw, codec), strict=True)
    ]
    found = _machinery.tuning_fit(*zip(costs, times, strict=True), codec, raw)
    # The probes are met again, whichever parameters share the time between them. (Not to the bit:
    # where the codec hides the wire in the one and not in the other, there may be two answers.)
    for cost, c, wanted in zip(costs, (raw, raw, codec), times, strict=True):
        assert seconds_of(found, cost, c, raw) == pytest.approx(wanted, rel=1e-3)
    assert found["latency"] == pytest.approx(link["latency"])
    # Where bytes are most of what the exact message costs, they are told from values.
    if costs[1]["bytes"] * link["seconds_per_byte"] > 0.7 * times[1]:
        assert found["seconds_per_byte"] == pytest.approx(link["seconds_per_byte"], rel=1e-3)


@pytest.mark.parametrize("seed", range(300))
def test_a_fit_of_anything_is_right_for_exact_messages_and_never_negative(seed):
    choose = random.Random(seed)
    _, codec, raw = made_up(seed)
    costs = two_ranks(256, 32), two_ranks(1 << 18, 32), two_ranks(1 << 18, 4)
    times = [10 ** choose.uniform(-6, 0) for _ in costs]
    link = _machinery.tuning_fit(*zip(costs, times, strict=True), codec, raw)
    assert min(link.values()) >= 0
    floor = costs[0]["steps"] * link["latency"] + seconds_of(
        {"latency": 0, "seconds_per_byte": 0, "seconds_per_value": 0}, costs[1], raw, raw
    )
    found = _machinery.tuning_predict(link, costs[1], raw, raw)
    assert found == pytest.approx(max(times[1], floor), rel=1e-6)


def test_a_fit_of_nothing_divides_by_nothing():
    nothing = dict.fromkeys(two_ranks(1, 32), 0.0) | {"rounds": 1.0}
    link = _machinery.tuning_fit(
        (nothing, 0.0), (nothing, 0.0), (nothing, 0.0), (0.0, 0.0), (0.0, 0.0)
    )
    assert link == {"latency": 0, "seconds_per_byte": 0, "seconds_per_value": 0}


@pytest.mark.parametrize("bandwidth, wanted", [(1e11, "exact"), (1.25e8, "asked")])
def test_the_choice_flips_with_the_link(bandwidth, wanted):
    raw, codec = (5e-11, 5e-11), (3e-10, 3e-10)
    link = {"latency": 5e-5, "seconds_per_byte": 1 / bandwidth, "seconds_per_value": 1e-10}
    seconds = {
        "exact": _machinery.tuning_predict(link, two_ranks(1 << 22, 32), raw, raw),
        "asked": _machinery.tuning_predict(link, two_ranks(1 << 22, 4), codec, raw),
    }
    assert _machinery.tuning_fastest(seconds) == wanted


@pytest.mark.parametrize(
    "seconds, wanted",
    [
        ({"exact": 1.0, "half": 1.0, "asked": 1.0}, "exact"),
        ({"exact": 1.0, "half": 0.99, "asked": 0.985}, "exact"),
        ({"exact": 1.0, "half": 0.99, "asked": 0.97}, "asked"),
        ({"exact": 1.0, "half": 0.94, "asked": 0.93}, "half"),
        ({"exact": 1.0, "half": 0.94, "asked": 0.91}, "asked"),
        ({"exact": 1.0, "asked": 0.94}, "asked"),
        ({"exact": 1.0, "half": 0.5}, "half"),
        ({"asked": 3.0}, "asked"),
        ({"exact": 9e-6, "half": 5e-6, "asked": 4.95e-6}, "half"),
        ({}, "asked"),
    ],
)
def test_ties_go_to_more_bits(seconds, wanted):
    assert _machinery.tuning_fastest(seconds) == wanted
