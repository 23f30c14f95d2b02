"""All-reduces give the same bits on every SIMD level, whichever way the ranks sit on hosts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests import _machinery
from tests.codec.conftest import EVERY_LEVEL, LEVELS
from tests.reduce.simulation import gaussian, run, run_shards
from torch_cgx import _C

HOSTS = {"one host": "aaa", "a rank each": "abc", "two levels": "aabbb"}


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    yield
    _machinery.pin_cpu_level("")


def everything(ranks: int, hosts: str) -> list[bytes]:
    """Results of a sweep over algorithms, dtypes, widths and roundings."""
    found = []
    for number, algorithm in enumerate(("oneshot", "sra", "ring")):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for bits in range(1, 9):
                rounding = ("nearest", "stochastic")[(bits + number) % 2]
                spec = _C.Codec(bits=bits, bucket_size=(64, 100)[bits % 2], rounding=rounding)
                inputs = gaussian(ranks, 1777, dtype, seed=bits)
                outputs, _ = run(inputs, [(1500, spec), (277, None)], algorithm, hosts=list(hosts))
                assert all(torch.equal(x, outputs[0]) for x in outputs)
                found.append(outputs[0].view(torch.uint8).numpy().tobytes())
    shards, _ = run_shards(
        "reduce_scatter",
        gaussian(ranks, ranks * 300),
        _C.Codec(bits=4, bucket_size=64),
        hosts=list(hosts),
    )
    found += [x.numpy().tobytes() for x in shards]
    return found


@pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS.keys())
@pytest.mark.parametrize("level", [name for name in EVERY_LEVEL if name != "scalar"])
def test_levels_agree(level: str, hosts: str) -> None:
    if level not in LEVELS:
        pytest.skip(f"this CPU has no {level}, only {', '.join(LEVELS)}")
    _machinery.pin_cpu_level("scalar")
    expected = everything(len(hosts), hosts)
    _machinery.pin_cpu_level(level)
    assert everything(len(hosts), hosts) == expected
