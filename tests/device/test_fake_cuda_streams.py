"""The fake CUDA device orders work as CUDA's streams and events do, and its allocator hands memory
out again as torch's does.
"""

from __future__ import annotations

import threading

import torch

from tests.device import fake_cuda

pytestmark = fake_cuda.needed


def run(fn, *args):
    return fake_cuda.run(fn, 1, *args, backend=None)


# ---- streams and events ----


def _order(rank, world_size):
    producer, waits, does_not = (fake_cuda.new_stream() for _ in range(3))
    x = torch.zeros(1000, device="cuda")
    torch.accelerator.synchronize()
    with fake_cuda.held(producer) as gate:
        gate.await_reached(1)
        with producer:
            x.fill_(1)
        event = torch.Event(device="cuda")
        event.record(producer)
        waits.wait_event(event)
        with waits:
            new = x.clone()
        with does_not:
            old = x.clone()
        does_not.synchronize()
        assert does_not.query() and not waits.query() and not producer.query()
        assert not event.query()
    event.synchronize()
    assert event.query()
    waits.synchronize()
    assert waits.query()
    with does_not:
        assert old.cpu().eq(0).all()
    with waits:
        assert new.cpu().eq(1).all()


def test_only_events_order_streams():
    run(_order)


def _delayed(rank, world_size):
    x = torch.zeros(10, device="cuda")
    torch.accelerator.synchronize()
    side, other = fake_cuda.new_stream(), fake_cuda.new_stream()
    fake_cuda.set_delay_us(0)
    with other:
        torch.zeros(1, device="cuda")
    other.synchronize()
    fake_cuda.set_delay_us(300_000)
    with side:
        x.fill_(1)
    assert not side.query()
    assert fake_cuda.peek(x).eq(0).all()
    side.synchronize()
    assert fake_cuda.peek(x).eq(1).all()
    fake_cuda.set_delay_us(200)


def test_tasks_are_delayed():
    run(_delayed)


def _streams(rank, world_size):
    first = fake_cuda.new_stream()
    assert first.native_handle != 0
    assert len({fake_cuda.new_stream().stream_id for _ in range(31)} | {first.stream_id}) == 32
    assert fake_cuda.new_stream() == first
    assert torch.cuda.current_stream() == fake_cuda.default_stream()
    seen = []
    with first:
        assert torch.cuda.current_stream() == first
        thread = threading.Thread(target=lambda: seen.append(torch.cuda.current_stream()))
        thread.start()
        thread.join()
    assert seen == [fake_cuda.default_stream()]  # the current stream is the thread's
    assert torch.cuda.current_stream() == fake_cuda.default_stream()


def test_streams_are_pooled_and_current_by_thread():
    run(_streams)


def _contexts(rank, world_size):
    seen = []

    def thread():
        seen.append(fake_cuda.has_context())
        fake_cuda.set_device(0)
        seen.append(fake_cuda.has_context())
        torch.Event(device="cuda").record(torch.cuda.current_stream())
        seen.append(fake_cuda.has_context())

    for lazy in [False, True]:
        fake_cuda.set_lazy_contexts(lazy)
        t = threading.Thread(target=thread)
        t.start()
        t.join()
    fake_cuda.set_lazy_contexts(False)
    return seen


def test_a_context_is_current_once_a_device_was_set():
    assert run(_contexts) == [[False, True, True, False, False, True]]


def _future(rank, world_size):
    producer, waits, does_not = (fake_cuda.new_stream() for _ in range(3))
    x = torch.zeros(1000, device="cuda")
    torch.accelerator.synchronize()
    future = fake_cuda.future()
    before = fake_cuda.records(waits)
    with fake_cuda.held(producer):
        with producer:
            x.fill_(1)
            future.mark_completed([x])
        with waits:
            future.wait()  # blocks the stream, not this thread
            new = x.clone()
        with does_not:
            old = x.clone()
        does_not.synchronize()
        assert not waits.query()
    with does_not:
        assert old.cpu().eq(0).all()
    with waits:
        assert new.cpu().eq(1).all()
    assert fake_cuda.records(waits) == before + 1


def test_a_future_orders_streams_and_records_its_tensors():
    run(_future)


# ---- the allocator ----


def _reuse(rank, world_size, record):
    fake_cuda.empty_cache()
    side = fake_cuda.new_stream()
    x = torch.ones(1000, device="cuda")
    result = torch.zeros(1000, device="cuda")
    torch.accelerator.synchronize()
    before = fake_cuda.records(side)
    with fake_cuda.held(side):
        with side:
            result.copy_(x)
        if record:
            x.record_stream(side)
        address = x.data_ptr()
        del x
        y = torch.full((1000,), 7.0, device="cuda")
        torch.cuda.current_stream().synchronize()
        reused = y.data_ptr() == address
    side.synchronize()
    assert fake_cuda.records(side) - before == record
    late = torch.empty(1000, device="cuda")
    assert record == (late.data_ptr() == address)  # it is there again once the stream is done
    return reused, result.cpu().unique().tolist()


def test_memory_that_was_not_recorded_is_used_again_at_once():
    assert run(_reuse, False) == [(True, [7.0])]


def test_memory_that_was_recorded_waits_for_the_stream():
    assert run(_reuse, True) == [(False, [1.0])]


def _streams_of_memory(rank, world_size):
    fake_cuda.empty_cache()
    used = fake_cuda.blocks()
    with fake_cuda.new_stream():
        address = torch.empty(500, device="cuda").data_ptr()
        assert fake_cuda.blocks() == used and fake_cuda.blocks(used=False) == 1
        elsewhere = torch.empty(500, device="cuda").data_ptr()
        assert elsewhere == address
    x = torch.empty(500, device="cuda")
    assert x.data_ptr() != address  # free for the stream that it was made on
    assert fake_cuda.blocks() == used + 1
    fake_cuda.empty_cache()
    assert fake_cuda.blocks(used=False) == 0


def test_free_memory_belongs_to_the_stream_it_was_made_on():
    run(_streams_of_memory)
