"""How long a call took a group, from what its ranks saw on clocks of their own."""

from __future__ import annotations

import random

import pytest

from tests import _machinery

US, MS, S = 1_000, 1_000_000, 1_000_000_000  # nanoseconds


@pytest.mark.parametrize("late", [0, 3 * US, 20 * MS, 10 * S])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_wait_for_a_late_rank_is_in_no_time(late, rank):
    clock = _machinery.SharedClock(3, True)
    begins = [7 * S + (late if r == rank else 0) for r in range(3)]
    ends = [max(begins) + spent for spent in (2 * MS, 3 * MS, 1 * MS)]
    assert clock.seconds(list(zip(begins, ends, strict=True))) == pytest.approx(3e-3)


def test_ranks_in_step_have_their_own_times():
    assert _machinery.SharedClock(2, True).seconds([(5, 105), (5, 85)]) == pytest.approx(100e-9)


def test_a_rank_without_a_time_leaves_the_group_without():
    assert _machinery.SharedClock(2, True).seconds([(5, 105), (0, 0)]) == 0


class Host:
    """A clock that is ahead by `ahead` ns at time 0 and runs too fast by `drift`."""

    def __init__(self, ahead: int, drift: float):
        self._ahead, self._drift = ahead, drift

    def at(self, time: int) -> int:
        return time + self._ahead + int(self._drift * time)

    def span(self, begin: int, end: int) -> tuple[int, int]:
        return self.at(begin), self.at(end)


# Other classes of messages make ranks meet, too, between the calls of one and their exchange.
@pytest.mark.parametrize("meetings", [(1 * S, 61 * S), (1 * S, 9 * S, 30 * S, 59 * S, 61 * S)])
@pytest.mark.parametrize("seed", range(20))
def test_clocks_of_hosts_are_brought_together(seed, meetings):
    choose = random.Random(seed)
    # Hosts that were started years apart, whose clocks differ by 50 us in a second.
    hosts = [Host(choose.randrange(10**17), choose.uniform(-5e-5, 5e-5)) for _ in range(4)]
    clock = _machinery.SharedClock(4, False)
    latency = 100 * US
    for meeting in meetings:
        spans = []
        for host in hosts:
            begin = meeting + choose.randrange(latency // 2)
            spans.append(host.span(begin, meeting + latency + choose.randrange(latency // 2)))
        clock.meet(spans)
    for _ in range(50):
        begin = choose.randrange(1 * S, 61 * S)
        begins = [begin + choose.choice([0, 30 * MS]) for _ in hosts]
        spent = choose.randrange(1 * MS, 20 * MS)
        found = clock.seconds(
            [host.span(b, max(begins) + spent) for host, b in zip(hosts, begins, strict=True)]
        )
        # Drift alone would be 3 ms after a minute; a rank's wait is 30 ms.
        assert found == pytest.approx(spent * 1e-9, abs=1.5e-9 * latency)


def test_a_time_is_never_outside_of_those_that_ranks_saw():
    """Clocks that have never met, or that jump, are no reason for nonsense."""
    clock = _machinery.SharedClock(2, False)
    assert clock.seconds([(1000, 3000), (5 * S, 5 * S + 500)]) == pytest.approx(500e-9)
    assert clock.seconds([(5 * S, 5 * S + 500), (1000, 3000)]) == pytest.approx(500e-9)
    clock.meet([(0, 10), (5 * S, 5 * S + 10)])
    assert 500e-9 <= clock.seconds([(1000, 3000), (9 * S, 9 * S + 500)]) <= 2000e-9


@pytest.mark.parametrize("begin", [0, 1, 2**22 - 1, 2**22, 10**15, 2**62 + 12345])
@pytest.mark.parametrize("length", [1, 17, 2**24 - 1])
def test_spans_travel_as_exact_finite_numbers(begin, length):
    numbers = _machinery.pack_span(begin, begin + length)
    assert all(0 <= n < 2**24 and n == int(n) for n in numbers)
    assert _machinery.unpack_span(numbers) == (begin, begin + length)


def test_long_spans_travel_to_24_bits():
    begin, length = 123456789012345678, 37 * S + 1
    first, last = _machinery.unpack_span(_machinery.pack_span(begin, begin + length))
    assert first == begin and last - first == pytest.approx(length, rel=2**-24)
