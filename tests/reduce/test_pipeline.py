"""The order of a call's steps: several rounds are under way, and no pair's messages overtake."""

from __future__ import annotations

import pytest

from tests import _machinery

SHAPES = [("oneshot", 2), ("oneshot", 5), ("sra", 3), ("sra", 8), ("ring", 2), ("ring", 5)]


def under_way(steps: list[tuple[int, int]], stages: int) -> int:
    """The most rounds that are begun and not complete, as one more is begun."""
    begun, complete, most = 0, 0, 0
    for stage, _ in steps:
        begun += stage == 0
        most = max(most, begun - complete)
        complete += stage == stages - 1
    return most


@pytest.mark.parametrize("in_flight", [2, 4])
@pytest.mark.parametrize("algorithm, size", SHAPES)
@pytest.mark.parametrize("rounds", [0, 1, 2, 3, 7])
def test_every_stage_of_every_round_once_and_in_order(algorithm, size, rounds, in_flight):
    stages, depth = _machinery.pipeline_depth(algorithm, size, in_flight)
    steps = _machinery.pipeline_steps(rounds, stages, depth)
    assert sorted(steps) == [(stage, number) for stage in range(stages) for number in range(rounds)]
    for number in range(rounds):
        assert [stage for stage, n in steps if n == number] == list(range(stages))


@pytest.mark.parametrize("algorithm, size", SHAPES)
def test_several_rounds_are_under_way_between_hosts(algorithm, size):
    stages, depth = _machinery.pipeline_depth(algorithm, size, 4)
    expected = 2 if algorithm == "ring" else 3
    assert under_way(_machinery.pipeline_steps(10, stages, depth), stages) == expected <= depth


@pytest.mark.parametrize("in_flight", [2, 3, 4])
@pytest.mark.parametrize("algorithm, size", SHAPES)
def test_messages_are_read_in_the_order_in_which_they_are_sent(algorithm, size, in_flight):
    """What a stage sends, the next stage of the same round reads, on a peer with the same order."""
    stages, depth = _machinery.pipeline_depth(algorithm, size, in_flight)
    steps = _machinery.pipeline_steps(9, stages, depth)
    sent = [(stage, number) for stage, number in steps if stage < stages - 1]
    read = [(stage - 1, number) for stage, number in steps if stage > 0]
    assert sent == read


@pytest.mark.parametrize("in_flight", [2, 3, 4])
@pytest.mark.parametrize("algorithm, size", SHAPES)
def test_no_rank_has_to_send_more_than_its_communicator_takes(algorithm, size, in_flight):
    """Sending may wait until the exchange `in_flight` before was read, which every rank does only
    after its own sends that come first in the common order.
    """
    stages, depth = _machinery.pipeline_depth(algorithm, size, in_flight)
    steps = _machinery.pipeline_steps(9, stages, depth)
    sends = [step for step in steps if step[0] < stages - 1]
    done_at = {step: place for place, step in enumerate(steps)}
    for number, (stage, round_number) in enumerate(sends[in_flight:]):
        before = sends[number]
        # It is read in the next stage of its round: an earlier step than the one that sends now.
        read_at = done_at[(before[0] + 1, before[1])]
        assert read_at < done_at[(stage, round_number)]
