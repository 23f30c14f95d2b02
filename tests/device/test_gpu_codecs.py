"""torch_cgx.codecs on CUDA tensors, on the fake device: the bytes of the CPU, in the stream's
order, without waiting. tests/gpu has the same on a GPU.
"""

from __future__ import annotations

import os

import pytest
import torch

from tests.codec import gpu_cases as cases
from tests.device import fake_cuda
from torch_cgx import _backend
from torch_cgx.codecs import Half, MaxMin

pytestmark = fake_cuda.needed


def run(fn, *args, **options):
    return fake_cuda.run(fn, 1, *args, backend=None, timeout=300, **options)[0]


# ---- bytes ----


def _sizes(rank, world_size, dtype, bucket_size, number):
    # A fourth of the sizes and one way each, which differ from call to call: all are met.
    step = cases.sizes(3)[number % 4 :: 4]
    for k, way in enumerate(cases.WAYS):
        cases.check_sizes(dtype, bucket_size, step[k::4], [way])


@pytest.mark.parametrize("bucket_size", cases.BUCKETS)
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_bytes_are_those_of_the_cpu(dtype, bucket_size):
    number = cases.BUCKETS.index(bucket_size) + cases.DTYPES.index(dtype)
    run(_sizes, dtype, bucket_size, number)


def _every_size(rank, world_size):
    cases.check_sizes(torch.float32, 64, range(401), [("stochastic", True)], bits=[3])


def test_every_small_size():
    run(_every_size)


def _special(rank, world_size, dtype):
    cases.check_special(dtype)


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_nan_inf_and_extremes(dtype):
    run(_special, dtype)


def _rotated(rank, world_size, dtype):
    cases.check_rotated(dtype, every=6)


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_rotated_blocks(dtype):
    run(_rotated, dtype)


def _formats(rank, world_size, dtype):
    cases.check_formats(dtype, every=3)


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_formats_of_values_and_blocks(dtype):
    run(_formats, dtype)


def _half(rank, world_size):
    for codec, x, shift in cases.half_cases():
        cases.check(codec, x, shift)


def test_sixteen_bits():
    run(_half)


# ---- the Python face ----


def _face(rank, world_size):
    codec = MaxMin(3, 100, "stochastic", seed=5)
    x = cases.values(60 * 50)
    for dtype in cases.DTYPES:
        here = x.to(dtype).view(60, 50)
        there = here.to("cuda")
        sent = codec.encode(there, sequence=6, rank=7, index=8)
        wanted = codec.encode(here, sequence=6, rank=7, index=8)
        assert sent.device == there.device and sent.dtype == torch.uint8
        assert torch.equal(sent.cpu(), wanted)
        back = codec.decode(sent, numel=3000, dtype=dtype)
        assert back.is_cuda and back.dtype == dtype and back.shape == (3000,)
        assert torch.equal(back.cpu(), codec.decode(wanted, numel=3000, dtype=dtype))
        trip = codec.roundtrip(there)
        assert trip.is_cuda and trip.shape == there.shape
        assert torch.equal(trip.cpu(), codec.roundtrip(here))
        for view in (there.t(), there[::2, 1:], there[3], there[:, 4], there.flip(0)):
            assert torch.equal(codec.encode(view).cpu(), codec.encode(view.cpu()))
    weight = torch.nn.Parameter(x.to("cuda"))
    assert torch.equal(codec.encode(weight.detach()).cpu(), codec.encode(x))
    with pytest.raises(RuntimeError, match="encode is not differentiable, and tensor requires"):
        codec.encode(weight)
    assert codec.encode(torch.empty(0, device="cuda")).shape == (0,)
    assert codec.decode(codec.encode(torch.empty(0, device="cuda")), numel=0).shape == (0,)


def test_tensors_of_every_kind():
    run(_face)


def _into(rank, world_size):
    codec = MaxMin(4, 32)
    x = cases.values(48)
    sent = codec.encode(x.to("cuda"))
    out = torch.zeros(8, 6, device="cuda").t()
    assert codec.decode(sent, out) is out
    assert torch.equal(out.cpu(), codec.roundtrip(x).view(6, 8))
    plain = torch.zeros(48, device="cuda")
    version = plain._version
    assert codec.decode(sent, plain) is plain and plain._version > version
    assert torch.equal(plain.cpu(), codec.roundtrip(x))
    weight = torch.nn.Parameter(torch.zeros(48, device="cuda"))
    with pytest.raises(RuntimeError, match="decode is not differentiable, and out requires"):
        codec.decode(sent, weight)
    with torch.no_grad():
        codec.decode(sent, weight)
    assert torch.equal(weight.detach().cpu(), codec.roundtrip(x))
    # A payload at any byte, or with gaps.
    for shift in (1, 4, 8):
        moved = torch.zeros(sent.numel() + shift, dtype=torch.uint8, device="cuda")[shift:]
        moved.copy_(sent)
        assert torch.equal(codec.decode(moved, numel=48).cpu(), codec.roundtrip(x))
    gaps = torch.zeros(2 * sent.numel(), dtype=torch.uint8, device="cuda")[::2]
    gaps.copy_(sent)
    assert torch.equal(codec.decode(gaps, numel=48).cpu(), codec.roundtrip(x))
    # In the memory that the payload lies in.
    memory = torch.zeros(48, device="cuda")
    within = memory.view(torch.uint8)[: sent.numel()]
    within.copy_(sent)
    codec.decode(within, memory)
    assert torch.equal(memory.cpu(), codec.roundtrip(x))


def test_decode_into_out():
    run(_into)


def _refused(rank, world_size):
    codec = MaxMin(4, 32)
    x = torch.ones(48, device="cuda")
    sent = codec.encode(x)
    texts = []
    for call in (
        lambda: codec.encode(x.double()),
        lambda: codec.encode(x, out=sent.to("meta")),
        lambda: codec.decode(sent, torch.zeros(48)),
        lambda: codec.decode(sent.cpu(), x),
        lambda: codec.decode(sent[:-1], x),
        lambda: codec.decode(x),
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            call()
        texts.append(f"{caught.type.__name__}: {caught.value}")
    ops, text = torch.ops.torch_cgx, codec._text
    for call in (
        lambda: ops.encode.out(x, text, out=sent.cpu()),
        lambda: ops.encode.out(x, text, out=sent[1:]),
        lambda: ops.encode(x.int(), text),
        lambda: ops.decode.out(sent, text, dtype=torch.int32, out=x),
        lambda: ops.decode.out(sent, text, out=x[:1].expand(48)),
        lambda: ops.decode_add(sent, text, out=x.cpu()),
        lambda: ops.decode(sent, "maxmin bits=9", 48, dtype=torch.float32),
        lambda: ops.roundtrip.out(x, text, out=x.half()),
        lambda: ops.roundtrip(x, text, rank=-1),
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            call()
        texts.append(str(caught.value))
    return texts


def _at_any_byte(rank, world_size):
    codec, x = MaxMin(4, 64), cases.values(1000).to("cuda")
    payload = codec.encode(x)
    room = torch.zeros(payload.numel() + 3, dtype=torch.uint8, device="cuda")
    out = room[3:]
    assert codec.encode(x, out=out) is out
    return torch.equal(out.cpu(), payload.cpu()), torch.equal(
        codec.decode(out, numel=1000).cpu(), codec.decode(payload, numel=1000).cpu()
    )


def test_payloads_may_lie_at_any_byte():
    assert run(_at_any_byte) == (True, True)


def test_errors_name_what_is_wrong():
    assert run(_refused) == [
        "TypeError: tensor.dtype is torch.float64, allowed: float32, float16, bfloat16",
        "ValueError: out is on device meta, allowed: cuda:0, where tensor is",
        "ValueError: out is on device cpu, allowed: cuda:0, where payload is",
        "ValueError: out is on device cuda:0, allowed: cpu, where payload is",
        "ValueError: payload has 39 bytes, allowed for 48 values of torch.float32: 40",
        "TypeError: payload is torch.float32 with 1 dimensions, allowed: uint8 with 1 dimension",
        "out is on device cpu, allowed: cuda:0, where tensor is",
        "out has 39 bytes, allowed for 48 values of torch.float32: 40",
        "tensor.dtype is torch.int32, allowed: float32, float16, bfloat16",
        "dtype is torch.int32, allowed: float32, float16, bfloat16",
        "cgx: decode into a tensor of shape [48] and strides [0] whose elements share memory (an "
        "expanded tensor); clone() it",
        "out is on device cpu, allowed: cuda:0, where payload is",
        "codec maxmin: bits='9' is not allowed; bits takes integers from 1 to 8",
        "out is torch.float16, allowed: torch.float32, as tensor",
        "rank is -1, allowed: 0 to 2147483647",
    ]


# ---- streams ----


def _streams(rank, world_size):
    codec, x = MaxMin(4, 64), cases.values(10_000)
    payload = codec.encode(x)
    there, ones = x.to("cuda"), torch.ones(10_000, device="cuda")
    torch.accelerator.synchronize()
    side = fake_cuda.new_stream()
    with fake_cuda.held(side):  # so no call may wait for what is on the stream
        with side:
            moved = there.clone()
            moved.mul_(2)
            sent = codec.encode(moved)
            back = codec.decode(sent, numel=10_000)
            moved.zero_()  # behind the encoding
            codec.decode(sent, ones)
        assert not side.query() and fake_cuda.peek(ones).eq(1).all()
        # Another stream goes on meanwhile.
        assert torch.equal(codec.encode(there).cpu(), payload)
    side.synchronize()
    with side:
        assert torch.equal(sent.cpu(), codec.encode(2 * x))
        assert torch.equal(back.cpu(), codec.roundtrip(2 * x))
        assert torch.equal(ones.cpu(), back.cpu()) and moved.cpu().eq(0).all()


def test_calls_go_on_the_current_stream_and_do_not_wait():
    run(_streams)


def _many(rank, world_size):
    # Tables of runs are freed and taken again while the stream is behind.
    fake_cuda.set_delay_us(200)
    try:
        side, results = fake_cuda.new_stream(), []
        with side:
            for n in range(1, 200):
                x = cases.values(n)
                codec = MaxMin(1 + n % 8, 1 + n % 50)
                results.append((codec.roundtrip(x), codec.roundtrip(x.to("cuda"))))
        side.synchronize()
        with side:
            assert all(torch.equal(wanted, got.cpu()) for wanted, got in results)
    finally:
        fake_cuda.set_delay_us(0)


def test_a_stream_that_is_far_behind():
    run(_many)


def _leak(rank, world_size):
    codec, x = MaxMin(4, 64), torch.ones(10_000, device="cuda")
    codec.roundtrip(x)
    torch.accelerator.synchronize()
    used = fake_cuda.blocks()
    for _ in range(50):
        codec.roundtrip(x)
    torch.accelerator.synchronize()
    return fake_cuda.blocks() - used


def test_memory_goes_back():
    assert run(_leak) == 0


def _lazy(rank, world_size):
    import threading

    codec, results = Half("bf16"), []
    x = torch.ones(100, device="cuda")
    fake_cuda.set_lazy_contexts(True)
    try:
        thread = threading.Thread(target=lambda: results.append(codec.roundtrip(x)))
        thread.start()
        thread.join()
    finally:
        fake_cuda.set_lazy_contexts(False)
    return results[0].cpu().eq(1).all().item()


def test_a_thread_without_a_context():
    assert run(_lazy)


def _captured(rank, world_size):
    codec, x = MaxMin(), torch.ones(100, device="cuda")
    sent = codec.encode(x)
    texts = []
    os.environ["STUB_DRIVER_CAPTURING"] = "1"  # the job's environment is undone
    for call in (lambda: codec.encode(x), lambda: codec.decode(sent, numel=100)):
        with pytest.raises(RuntimeError) as caught:
            call()
        texts.append(str(caught.value))
    return texts


def test_not_in_the_capture_of_a_graph():
    texts = run(_captured)
    assert len(texts) == 2 and all("inside the capture of a CUDA graph" in text for text in texts)


def _second_device(rank, world_size):
    codec, x = MaxMin(4, 64), cases.values(1000)

    def load(major, minor):
        raise RuntimeError(f"no kernels for {major}.{minor}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_backend, "load_kernels", load)
        with pytest.raises(RuntimeError, match="no kernels for"):
            codec.encode(x.to("cuda:1"))
    sent = codec.encode(x.to("cuda:1"))  # the current one is cuda:0
    assert sent.device == torch.device("cuda:1") and torch.cuda.current_device() == 0
    with pytest.raises(ValueError, match="out is on device cuda:0, allowed: cuda:1"):
        codec.decode(sent, torch.zeros(1000, device="cuda"))
    assert torch.equal(sent.cpu(), codec.encode(x))
    return torch.equal(codec.decode(sent, numel=1000).cpu(), codec.roundtrip(x))


def test_a_failed_load_and_another_device_than_the_current_one():
    env = {"STUB_DRIVER_DEVICES": "2"}
    assert fake_cuda.run_fresh(_second_device, 1, backend=None, env=env) == [True]
