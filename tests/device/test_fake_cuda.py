"""Tensors of the fake CUDA device behave as torch's on CUDA do, where tests of the backend rely on
it; the driver beneath; and errors where there can be no device.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.device import fake_cuda
from tests.distributed import ROOT, store

pytestmark = fake_cuda.needed


def run(fn, *args, world_size=1):
    return fake_cuda.run(fn, world_size, *args, backend=None)


# ---- memory and copies ----


def _round_trip(rank, world_size):
    for dtype in [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool]:
        x = torch.arange(-5, 19).reshape(2, 3, 4).to(dtype)
        y = x.to("cuda")
        assert y.device == torch.device("cuda:0") and y.is_cuda and y.dtype == dtype
        assert torch.equal(y.cpu(), x) and torch.equal(y.clone().cpu(), x)
        assert torch.equal(y, x.cuda())
    assert torch.empty(0, device="cuda").cpu().shape == (0,)
    fake_cuda.empty_cache()
    assert torch.empty(3000, device="cuda").cpu().isnan().all()  # new memory is not zero


def test_tensors_come_back_from_the_device():
    run(_round_trip)


def _strided(rank, world_size):
    x = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    y = torch.from_numpy(x).to("cuda")
    view = y.transpose(0, 2)[1:, ::2]
    expected = x.transpose(2, 1, 0)[1:, ::2]
    assert not view.is_contiguous()
    assert np.array_equal(view.cpu().numpy(), expected)
    assert np.array_equal(view.contiguous().cpu().numpy(), expected)
    assert view.contiguous().is_contiguous()
    assert np.array_equal(view.half().cpu().numpy(), expected.astype(np.float16))
    assert np.array_equal(y.view(12, 5)[3].cpu().numpy(), x.reshape(12, 5)[3])
    assert np.array_equal(y.reshape(-1)[7:9].cpu().numpy(), [7, 8])
    # Into a part, of another dtype, from the device and from the host.
    into = torch.zeros(5, 4, 6, dtype=torch.float64, device="cuda")
    into[:, :, ::2].copy_(y.transpose(0, 2))
    into[:, :, 1::2] = torch.from_numpy(-x).transpose(0, 2)
    wanted = np.zeros((5, 4, 6))
    wanted[:, :, ::2] = x.transpose(2, 1, 0)
    wanted[:, :, 1::2] = -x.transpose(2, 1, 0)
    assert np.array_equal(into.cpu().numpy(), wanted)
    row = torch.zeros(4, 3, device="cuda")
    row.copy_(torch.tensor([1.0, 2.0, 3.0]))  # broadcast
    assert row.cpu().tolist() == [[1.0, 2.0, 3.0]] * 4


def test_copies_follow_strides_and_convert():
    run(_strided)


def _arithmetic(rank, world_size):
    x = torch.arange(8.0)
    y = x.to("cuda")
    assert torch.equal((y + 2 * y).cpu(), x + 2 * x)  # on the CPU
    y.add_(1).mul_(3).add_(x.to("cuda"), alpha=2).div_(4)  # on the stream
    assert torch.equal(y.cpu(), ((x + 1) * 3 + 2 * x) / 4)
    assert y.fill_(5).sum().item() == 40 and y.zero_().sum().item() == 0
    assert torch.cat([y, y]).device == y.device
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.ones(3, dtype=torch.int64, device="cuda").mul_(0.5)
    grown = x.to("cuda").resize_(10)
    assert torch.equal(grown.cpu()[:8], x)


def test_operators_give_what_the_cpu_gives():
    run(_arithmetic)


def _backward(rank, world_size):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))
    x = torch.randn(3, 4)
    model(x).square().sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    model.to("cuda")
    torch.accelerator.synchronize()  # the device is behind, also with a copy of pageable memory
    with fake_cuda.new_stream():
        model(x.to("cuda")).square().sum().backward()
    torch.accelerator.synchronize()
    for p, grad in zip(model.parameters(), expected, strict=True):
        assert p.grad.is_cuda
        torch.testing.assert_close(p.grad.cpu(), grad)


def test_backward_of_a_model():
    run(_backward)


def _snapshot(rank, world_size):
    x = torch.ones(1000)
    with fake_cuda.held(torch.cuda.current_stream()) as gate:
        y = x.to("cuda")
        x.fill_(2)
        gate.release()
        assert y.cpu().eq(1).all()


def test_a_copy_from_the_host_takes_what_is_there_at_the_call():
    run(_snapshot)


def _pinned(rank, world_size):
    x, back = torch.ones(1000).pin_memory(), torch.zeros(1000).pin_memory()
    assert x.is_pinned() and x[5:].is_pinned() and not torch.ones(1000).is_pinned()
    with fake_cuda.held(torch.cuda.current_stream()):
        y = x.to("cuda", non_blocking=True)
        back.copy_(y, non_blocking=True)
        x.fill_(2)
        assert back.eq(0).all()
    torch.cuda.synchronize()
    assert y.cpu().eq(2).all() and back.eq(2).all()


def test_copies_of_pinned_memory_can_come_later():
    run(_pinned)


# ---- what torch.distributed builds on it ----


def _gloo(rank, world_size):
    x = torch.full((1000,), 1.0 + rank, device="cuda")
    for _ in range(3):  # on what the stream has not come to yet
        x.add_(1)
    total, first = x.clone(), x.clone()
    dist.all_reduce(total)
    dist.broadcast(first, 0)
    parts = [torch.empty_like(x) for _ in range(world_size)]
    dist.all_gather(parts, x)
    half = torch.empty(500, device="cuda")
    dist.reduce_scatter_single(half, x)
    total.mul_(2)
    sums = [t.cpu().unique().tolist() for t in (total, first, *parts, half)]
    assert sums == [[18.0], [4.0], [4.0], [5.0], [9.0]]


def test_gloo_carries_tensors_of_the_device():
    fake_cuda.run(_gloo, 2, backend="gloo")


def _ddp(rank, world_size, device, ids):
    torch.manual_seed(rank)  # rank 0's parameters count
    layers = [torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2)]
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*layers).to(device), device_ids=ids
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(3):
        model(torch.full((3, 4), 1.0 + rank + step, device=device)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().cpu().flatten() for p in model.parameters()]).tolist()


def test_ddp_trains_as_on_the_cpu():
    expected = fake_cuda.run(_ddp, 2, "cpu", None, backend="gloo")
    for ids in [None, [0]]:
        got = fake_cuda.run(_ddp, 2, "cuda", ids, backend="gloo")
        assert got[0] == got[1]
        np.testing.assert_allclose(got[0], expected[0], rtol=1e-5, atol=1e-7)


# ---- the driver beneath ----


class _Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


def _share(rank, world_size):
    driver = ctypes.CDLL("libcuda.so.1")
    keys = store()
    if rank == 0:
        x = torch.arange(1000.0).to("cuda")
        torch.accelerator.synchronize()
        handle = ctypes.create_string_buffer(64)
        assert driver.cuIpcGetMemHandle(handle, ctypes.c_uint64(x.data_ptr())) == 0
        keys.set("memory", handle.raw)
        keys.wait(["opened"])
        return torch.equal(x.cpu(), torch.arange(1000.0) + 1)

    address = ctypes.c_uint64()
    handle = _Handle.from_buffer_copy(keys.get("memory"))
    assert driver.cuIpcOpenMemHandle_v2(ctypes.byref(address), handle, 1) == 0
    theirs = np.frombuffer((ctypes.c_float * 1000).from_address(address.value), np.float32)
    right = bool((theirs == np.arange(1000)).all())
    theirs += 1
    assert driver.cuIpcCloseMemHandle(address) == 0
    keys.set("opened", "1")
    return right


def test_another_process_can_open_memory():
    assert run(_share, world_size=2) == [True, True]


def _open_and_die(rank, world_size):
    driver = ctypes.CDLL("libcuda.so.1")
    keys = store()
    address = ctypes.c_uint64()
    if rank == 1:
        handle = _Handle.from_buffer_copy(keys.get("memory"))
        assert driver.cuIpcOpenMemHandle_v2(ctypes.byref(address), handle, 1) == 0
        keys.set("opened", str(os.getpid()))
        keys.wait(["refused"])
        os.kill(os.getpid(), signal.SIGKILL)
    handle = _Handle()
    assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4096)) == 0
    assert driver.cuIpcGetMemHandle(ctypes.byref(handle), address) == 0
    own = ctypes.c_uint64()
    assert driver.cuIpcOpenMemHandle_v2(ctypes.byref(own), handle, 1) == 201
    keys.set("memory", bytes(handle))
    peer = int(keys.get("opened"))
    del os.environ["STUB_DRIVER_STRICT"]
    assert driver.cuMemFree_v2(address) == 719
    keys.set("refused", "1")
    deadline = time.monotonic() + 20
    while driver.cuMemFree_v2(address) != 0:  # a dead process has nothing open
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return peer


def test_memory_that_another_process_has_open_is_not_freed(tmp_path):
    env = {"STUB_DRIVER_LOG": str(tmp_path / "driver.log")}
    first, _ = fake_cuda.run_fresh(_open_and_die, 2, backend=None, check=False, env=env)
    assert first.error is None, first
    assert f"undefined {first.value} 0\n" in Path(env["STUB_DRIVER_LOG"]).read_text()


def _devices(rank, world_size):
    def driver_says():
        number = ctypes.c_int(-1)
        assert ctypes.CDLL("libcuda.so.1").cuCtxGetDevice(ctypes.byref(number)) == 0
        return number.value

    x = torch.ones(3, device="cuda:1")
    with torch.accelerator.device_index(1):
        assert torch.cuda.current_device() == driver_says() == 1
        y = torch.ones(3, device="cuda")
    assert torch.cuda.current_device() == driver_says() == 0 and torch.cuda.device_count() == 2
    assert y.device == x.device == torch.device("cuda:1")
    return torch.equal(y.to("cuda:0").cpu(), x.cpu())


def test_two_devices():
    env = {"STUB_DRIVER_DEVICES": "2"}
    assert fake_cuda.run_fresh(_devices, 1, backend=None, env=env) == [True]


# ---- where it is not available ----


def _python(code):
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    return done.returncode, done.stderr


def test_it_is_loaded_before_torch_or_not_at_all():
    code, error = _python("import torch; from tests.device.fake_cuda import load; load()")
    assert code != 0 and "has to run before torch is imported" in error


def test_another_driver_is_named(tmp_path):
    other = tmp_path / "libcuda.so.1"
    subprocess.run(
        [fake_cuda.CXX, "-shared", "-fPIC", "-x", "c++", "/dev/null", "-o", other]
        + ["-Wl,-soname,libcuda.so.1"],
        check=True,
    )
    fake_cuda.build()
    code, error = _python(
        f"import ctypes; ctypes.CDLL({str(other)!r})\n"
        "from tests.device.fake_cuda import load; load()"
    )
    assert code != 0 and "is not the stub driver" in error


def test_without_the_device_torch_has_no_cuda():
    code, error = _python("import torch; torch.ones(3, device='cuda')")
    assert code != 0 and "not compiled with CUDA" in error
