"""Error feedback in simulated groups: against a model of each rank's residual, and over many steps
against the exact sum.
"""

import numpy as np
import pytest
import torch

import torch_cgx
from tests.reduce.model import DTYPES
from torch_cgx import _C, simulate

CODECS = [name for name in (f["name"] for f in _C.families()) if name != "raw"]
HOSTS = {"one host": None, "two levels": [0, 0, 1, 1, 1]}


def gradients(ranks, n, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, generator=generator).to(dtype) for _ in range(ranks)]


def zeros(tensors, dtype=torch.float32):
    return [torch.zeros(t.shape, dtype=dtype) for t in tensors]


def coded(x, codec):
    """x as its receivers decode it."""
    return codec.decode(codec.encode(x), numel=x.numel())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_shot_leaves_each_rank_the_error_of_its_contribution(dtype):
    codec = torch_cgx.codecs.MaxMin(bits=2, bucket_size=64)
    tensors = gradients(3, 1000, dtype)
    residuals = [torch.full((1000,), 0.01 * (r + 1)) for r in range(3)]
    wanted = [t.float() + r for t, r in zip(tensors, residuals, strict=True)]
    sent = [coded(w, codec) for w in wanted]
    exact = sent[0] + sent[1] + sent[2]
    found = simulate(tensors, codec, "oneshot", residuals=residuals)
    assert torch.equal(found.result, exact.to(dtype))
    errors = [w - s for w, s in zip(wanted, sent, strict=True)]
    errors[0] += exact - exact.to(dtype).float()  # of the sum's rounding; 0 for float32
    for residual, error in zip(residuals, errors, strict=True):
        assert torch.equal(residual, error)


@pytest.mark.parametrize("average", [False, True])
def test_the_owner_of_a_chunk_keeps_the_error_of_its_sum(average):
    codec = torch_cgx.codecs.MaxMin(bits=2, bucket_size=64)
    n = 64 * 6
    tensors = gradients(3, n)
    residuals = zeros(tensors)
    op = torch.distributed.ReduceOp.AVG if average else torch.distributed.ReduceOp.SUM
    found = simulate(tensors, codec, "sra", op=op, residuals=residuals)
    chunks = {0: slice(0, 128), 1: slice(128, 256), 2: slice(256, 384)}
    sent = [coded(t, codec) for t in tensors]
    for owner, chunk in chunks.items():
        parts = [tensors[r][chunk] if r == owner else sent[r][chunk] for r in range(3)]
        exact = parts[0] + parts[1] + parts[2]
        shown = exact / 3 if average else exact
        result = coded(shown, codec)
        assert torch.equal(found.result[chunk], result)
        for r in range(3):
            if r == owner:
                error = (shown - result) * (3 if average else 1)
            else:
                error = tensors[r][chunk] - sent[r][chunk]
            assert torch.equal(residuals[r][chunk], error), (owner, r)


def distances(tensors, config, algorithm, hosts, steps, residual_dtype=torch.float32):
    """The relative distance of the mean of the results to the exact mean, after each of `steps`."""
    exact = np.mean([t.double().numpy() for t in tensors], axis=0)
    residuals = zeros(tensors, residual_dtype)
    mean = np.zeros_like(exact)
    found = []
    for step in range(1, max(steps) + 1):
        result = simulate(
            tensors,
            config,
            algorithm,
            op=torch.distributed.ReduceOp.AVG,
            hosts=hosts,
            sequence=step,
            residuals=residuals,
        ).result
        mean += (result.double().numpy() - mean) / step
        if step in steps:
            found.append(np.linalg.norm(mean - exact) / np.linalg.norm(exact))
    return found


@pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS)
@pytest.mark.parametrize("algorithm", ["oneshot", "sra", "ring"])
@pytest.mark.parametrize("codec", CODECS)
def test_the_mean_over_steps_tends_to_the_exact_one(codec, algorithm, hosts):
    # Ten times the steps: a tenth of the distance, where a constant error would stay.
    bits = 16 if codec == "half" else 4
    config = {"bits": bits} if codec == "half" else {"codec": codec, "bits": bits}
    tensors = gradients(5, 3000)
    early, late = distances(tensors, config, algorithm, hosts, (8, 80))
    assert late < early / 5
    without = simulate(tensors, config, algorithm, hosts=hosts).error["relative_l2"]
    assert late < without / 10


FEW = {
    "nearest": {"bits": 2, "bucket_size": 64},
    "stochastic": {"bits": 2, "bucket_size": 64, "rounding": "stochastic"},
    "rotated": {"codec": "rotated", "bits": 1},
    "trellis": {"codec": "trellis", "bits": 1},
}


@pytest.mark.parametrize("algorithm", ["oneshot", "sra"])
@pytest.mark.parametrize("config", FEW.values(), ids=FEW)
def test_few_bits_converge_too(config, algorithm):
    early, late = distances(gradients(4, 2000), config, algorithm, None, (20, 200))
    assert late < early / 4
    assert late < 0.02


# Its error exceeds the values: residuals grow (docs/numerics.md, Error feedback).
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("layered", [False, True])
def test_maxmin_at_one_bit_is_refused(rounding, layered):
    config = {"bits": 1, "bucket_size": 64, "rounding": rounding}
    how = {"layers": [(500, None), (500, config)]} if layered else {"config": config}
    tensors = gradients(2, 1000)
    residuals = [torch.ones(1000), torch.ones(1000)]
    with pytest.raises(
        ValueError, match=r"maxmin bits=1 .*grow.*allowed at 1 bit: codec 'rotated'"
    ):
        simulate(tensors, residuals=residuals, **how)
    assert all(torch.equal(residual, torch.ones(1000)) for residual in residuals)
    simulate(tensors, **how)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("algorithm", ["oneshot", "sra"])
@pytest.mark.parametrize("bits", [4, 32])
def test_the_rounding_to_a_type_of_16_bits_is_fed_back(dtype, algorithm, bits):
    config = {"bits": bits}
    early, late = distances(gradients(3, 2000, dtype), config, algorithm, None, (10, 100))
    assert late < early / 4


def test_a_bfloat16_residual_forgets_little():
    config = {"bits": 4}
    tensors = gradients(4, 2000)
    early, late = distances(tensors, config, "sra", None, (10, 100), torch.bfloat16)
    assert late < early / 4


def test_a_value_without_an_error_does_not_touch_its_neighbours():
    # Each bucket of equal values is exact, so the residual is paid and stays 0.
    tensors = [torch.ones(256), torch.ones(256)]
    residuals = [torch.full((256,), 0.5), torch.zeros(256)]
    found = simulate(tensors, {"bits": 4, "bucket_size": 64}, residuals=residuals)
    assert torch.equal(found.result, torch.full((256,), 2.5))
    assert all(torch.equal(r, torch.zeros(256)) for r in residuals)


@pytest.mark.parametrize(
    ("residuals", "error", "text"),
    [
        (torch.zeros(4), TypeError, "residuals"),
        ([torch.zeros(4)], ValueError, "residuals has 1 tensors; allowed: 2"),
        ([torch.zeros(4), 3], TypeError, r"residuals\[1\] is 3"),
        ([torch.zeros(4), torch.zeros(5)], ValueError, r"residuals\[1\] has the shape \(5,\)"),
        ([torch.zeros(4), torch.zeros(8)[::2]], ValueError, "contiguous"),
        ([torch.zeros(4).half()] * 2, TypeError, "torch.float16; allowed: torch.float32"),
        ([torch.zeros(4), torch.zeros(4).bfloat16()], TypeError, "allowed: torch.float32"),
    ],
)
def test_bad_residuals_are_named(residuals, error, text):
    with pytest.raises(error, match=text):
        simulate([torch.zeros(4)] * 2, {"bits": 4}, residuals=residuals)
