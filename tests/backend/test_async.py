"""Works and futures: asynchronous calls, callbacks that launch collectives, completion hooks,
coalescing.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import torch_cgx
from tests.distributed import run_pooled, run_ranks


def returns_at_once(rank, world_size):
    dist.barrier()
    if rank == 1:
        time.sleep(1.0)
    tensor = torch.full((100_000,), float(rank + 1))
    start = time.monotonic()
    work = dist.all_reduce(tensor, async_op=True)
    launch = time.monotonic() - start
    done_early = work.is_completed()
    work.wait()
    waited = time.monotonic() - start
    assert torch.all(tensor == 3)
    if rank == 0:
        assert launch < 0.5 and not done_early and waited > 0.5
    assert work.is_completed() and work.is_success()
    assert torch.equal(work.result()[0], tensor)


@pytest.mark.quiet
def test_async_op_returns_before_the_transfer():
    run_pooled(returns_at_once, 2)


def many_in_flight(rank, world_size):
    tensors = [torch.full((n,), float(rank + n)) for n in range(1, 200)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    for work in reversed(works):
        work.wait()
    for n, tensor in enumerate(tensors, 1):
        assert torch.all(tensor == sum(r + n for r in range(world_size)))


def test_many_calls_in_flight():
    run_pooled(many_in_flight, 3)


def callbacks(rank, world_size):
    order = []

    def nested(future):
        (tensor,) = future.value()
        order.append("first")
        dist.all_reduce(tensor)  # waits, inside of a callback
        order.append("second")
        again = dist.all_reduce(tensor, async_op=True).get_future().wait()[0]
        order.append("third")
        return again

    tensor = torch.full((1000,), 1.0)
    future = dist.all_reduce(tensor, async_op=True).get_future().then(nested)
    result = future.wait()
    assert torch.all(result == world_size**3)
    assert order == ["first", "second", "third"]

    chain = dist.all_reduce(torch.ones(10), async_op=True).get_future()
    for _ in range(5):
        chain = chain.then(
            lambda f: dist.all_reduce(f.value()[0], async_op=True).get_future().wait()
        )
    assert torch.all(chain.wait()[0] == world_size**6)


@pytest.mark.parametrize("world_size", [2, 3])
def test_callbacks_may_launch_collectives_and_wait(world_size):
    run_pooled(callbacks, world_size)


def futures(rank, world_size):
    work = dist.all_reduce(torch.ones(10), async_op=True)
    work.wait()
    late = work.get_future()  # asked for after the end
    assert late.done() and torch.all(late.value()[0] == world_size)
    assert work.get_future().value()[0].data_ptr() == late.value()[0].data_ptr()
    seen = []
    late.add_done_callback(lambda f: seen.append(f.value()[0].sum().item()))
    assert seen == [10 * world_size]
    backend = torch_cgx._backend.backend_of()
    raw = backend.all_reduce_layers(torch.ones(10), dist.ReduceOp.SUM, [(10, None)])
    raw.wait()
    assert raw._get_duration() >= 0


def test_futures():
    run_pooled(futures, 2)


def failing_future(rank, world_size):
    group = dist.new_group([0, 1], timeout=__import__("datetime").timedelta(seconds=1))
    if rank == 0:
        future = dist.all_reduce(torch.ones(10), group=group, async_op=True).get_future()
        chained = future.then(lambda f: f.value()[0])
        with pytest.raises(Exception, match="rank 0 waited"):
            future.wait()
        with pytest.raises(Exception, match="rank 0 waited"):
            chained.wait()
    else:
        time.sleep(2)


def test_an_error_reaches_the_future_and_what_is_chained_to_it():
    run_pooled(failing_future, 2)


def powersgd(rank, world_size):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for step in range(5):
        torch.manual_seed(100 * step + rank)
        model(torch.randn(8, 64)).square().mean().backward()
    return model.module.weight.grad.sum().item()


def test_chained_hooks_of_torch_work():
    results = run_pooled(powersgd, 2)
    assert results[0] == results[1]


def destroyed_with_work_pending(rank, world_size):
    group = dist.new_group([0, 1])
    tensors = [torch.full((100_000,), 1.0) for _ in range(20)]
    for tensor in tensors:
        dist.all_reduce(tensor, group=group, async_op=True)
    dist.destroy_process_group(group)
    assert all(torch.all(t == 2) for t in tensors)


def test_destroy_waits_for_what_is_under_way():
    run_pooled(destroyed_with_work_pending, 2)


def use_after_destroy(rank, world_size):
    backend = torch_cgx._backend.backend_of(dist.new_group([0, 1]))
    backend.shutdown()
    with pytest.raises(RuntimeError, match="has been destroyed"):
        backend.allreduce([torch.ones(10)])
    with pytest.raises(RuntimeError, match="has been destroyed"):
        backend.broadcast([torch.ones(10)])


def test_calls_after_destroy_are_errors():
    run_pooled(use_after_destroy, 2)


def abort_unblocks(rank, world_size):
    import threading

    group = dist.new_group([0, 1])
    backend = torch_cgx._backend.backend_of(group)
    if rank == 1:
        time.sleep(1.5)
        return
    threading.Timer(0.5, backend.abort).start()
    start = time.monotonic()
    with pytest.raises(torch_cgx.AbortedError, match="abort"):
        dist.all_reduce(torch.ones(10), group=group)
    assert time.monotonic() - start < 1.5


@pytest.mark.quiet
@pytest.mark.parametrize("communicator", ["SHM", "GLOO"])
def test_abort_from_another_thread(communicator):
    run_pooled(abort_unblocks, 2, env={"CGX_INNER_COMMUNICATOR_TYPE": communicator})


def sequence_numbers(rank, world_size):
    backend = torch_cgx._backend.backend_of()
    before = backend._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(10))
    dist.broadcast(torch.ones(10), 0)
    return backend._get_sequence_number_for_group() - before


def test_sequence_numbers_count_all_collectives():
    assert run_pooled(sequence_numbers, 2) == [2, 2]


def detail(rank, world_size):
    tensor = torch.ones(100)
    dist.all_reduce(tensor)
    torch_cgx.all_reduce(tensor, config={"bits": 8})
    assert torch.all(tensor == world_size**2)
    return type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__


def test_debug_detail_wraps_the_backend():
    from tests.distributed import run_ranks

    names = run_ranks(
        detail, 2, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    )
    assert names == ["_ProcessGroupWrapper"] * 2


def own_threads():
    names = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm") as file:
            names.append(file.read().strip())
    return sorted(names)


def on_the_callers_thread(rank, world_size):
    x = torch.full((1000,), float(rank + 1))
    dist.all_reduce(x)
    torch_cgx.all_reduce(x, config={"bits": 4})
    before = own_threads().count("cgx-worker")
    works = [dist.all_reduce(x.clone(), async_op=True) for _ in range(20)]
    y = x.clone()
    dist.all_reduce(y)  # in its turn, behind those that are under way
    works.append(dist.all_reduce(y, async_op=True))
    for work in works:
        work.wait()
    return before, own_threads().count("cgx-worker"), x[0].item(), y[0].item()


def test_calls_that_are_waited_for_need_no_other_thread():
    for before, after, x, y in run_pooled(on_the_callers_thread, 2):
        assert (before, after) == (0, 1)
        assert (x, y) == (6.0, 24.0)


def ended_from_outside(rank, world_size, how):
    """Rank 0 waits inside a call for rank 1, which never comes; another thread ends it."""
    dist.barrier()
    if rank == 1:
        time.sleep(2.0)
        return None
    backend = torch_cgx._backend.backend_of()

    def end():
        time.sleep(0.5)
        backend.abort() if how == "abort" else backend.shutdown()

    thread = threading.Thread(target=end)
    start = time.monotonic()
    thread.start()
    with pytest.raises(torch_cgx.CgxError):
        dist.all_reduce(torch.ones(10))
    waited = time.monotonic() - start
    thread.join()
    return waited


@pytest.mark.parametrize(("how", "limit"), [("abort", 1.5), ("shutdown", 13.0)])
def test_a_call_on_the_callers_thread_can_be_ended_by_another(how, limit):
    """shutdown() gives calls that are under way 10 s; here the peer leaves before."""
    outcomes = run_pooled(ended_from_outside, 2, how, group_timeout=30, check=False)
    assert outcomes[0].error is None, outcomes[0].report()
    assert 0.4 < outcomes[0].value < limit


def split_over_threads(rank, world_size):
    """Bits and counts of threads: /proc shows those that torch starts for a thread's loops."""
    results = []
    for bits in (32, 16, 4):
        for dtype in (torch.float32, torch.bfloat16):
            for async_op in (False, True):
                same = []
                for threads in (1, 3):
                    torch.set_num_threads(threads)
                    x = torch.randn(600_001, generator=torch.Generator().manual_seed(rank))
                    x = x.to(dtype)
                    before = len(own_threads())
                    config = None if bits == 32 else {"bits": bits}
                    work = torch_cgx.all_reduce(x, config=config, async_op=async_op)
                    if work is not None:
                        work.wait()
                    same.append(x.view(torch.uint8))
                    results.append((threads, len(own_threads()) - before))
                assert torch.equal(*same), (bits, dtype, async_op)
    torch.set_num_threads(1)
    assert max(new for threads, new in results if threads == 1) <= 1  # the worker
    assert max(new for threads, new in results if threads == 3) >= 2


def test_large_buffers_are_split_over_torchs_threads():
    run_ranks(split_over_threads, 2)


def rotated_on_threads(rank, world_size):
    torch.set_num_threads(3)
    results = []
    for bits in (1, 2, 4):
        x = torch.randn(600_001, generator=torch.Generator().manual_seed(rank))
        torch_cgx.all_reduce(x, config={"codec": "rotated", "bits": bits})
        results.append(x.view(torch.int32))
    torch.set_num_threads(1)
    return results


@pytest.mark.parametrize("reduction", ["ONESHOT", "SRA"])
def test_ranks_agree_when_rotated_blocks_are_split_over_threads(reduction):
    env = {"CGX_INNER_REDUCTION_TYPE": reduction}
    first, second = run_pooled(rotated_on_threads, 2, env=env)
    for mine, other in zip(first, second, strict=True):
        assert torch.equal(mine, other)


class NoNewTensors(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert "empty" not in str(func), func
        return func(*args, **(kwargs or {}))


def below_a_mode(rank, world_size):
    torch.set_num_threads(2)
    x = torch.ones(1 << 19)
    with NoNewTensors():
        torch_cgx.all_reduce(x, config={"bits": 4})
    torch.set_num_threads(1)
    return x.min().item(), x.max().item()


def test_modes_of_the_caller_do_not_reach_into_the_engine():
    assert run_pooled(below_a_mode, 2) == [(2.0, 2.0)] * 2


def of_a_new_thread():
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.get_num_threads).result()


def with_other_numbers_of_threads(rank, world_size):
    """The worker takes the caller's number of threads; what new threads get stays as it was set."""
    torch.set_num_threads(1)
    if rank == 1:
        time.sleep(0.5)
    works = [dist.all_reduce(torch.ones(1 << 18), async_op=True)]
    torch.set_num_threads(2)
    works.append(dist.all_reduce(torch.ones(1 << 18), async_op=True))
    torch.set_num_threads(1)  # rank 0: before the second call begins
    for work in works:
        work.wait()
    return of_a_new_thread()


def test_numbers_of_threads_of_calls_are_theirs_alone():
    assert run_pooled(with_other_numbers_of_threads, 2) == [1, 1]
