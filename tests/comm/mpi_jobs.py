"""What the ranks of tests/comm/test_mpi_jobs.py do, started by mpirun:

    python -m tests.comm.mpi_jobs FOLDER NAME...

A job returns what the test looks at; it goes to FOLDER/NAME-RANK.json.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tests.calls import failure, on_threads
from tests.comm.mpi_endpoint import make_mpi_endpoint
from torch_cgx import _mpi_loader

RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))
SIZE = int(os.environ.get("OMPI_COMM_WORLD_SIZE", os.environ.get("PMI_SIZE", "1")))


class Place:
    """Where the ranks meet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.store = dist.FileStore(str(folder / "store"), -1)

    def group(self, name: str, ranks: list[int] | None = None, **options: Any) -> Any:
        """The endpoint of this rank in a new group of `ranks`."""
        ranks = list(range(SIZE)) if ranks is None else ranks
        store = dist.PrefixStore(name, self.store)
        return make_mpi_endpoint(
            _mpi_loader.load(), store, ranks.index(RANK), len(ranks), **options
        )

    def meet(self, name: str) -> None:
        """A barrier without MPI."""
        self.store.set(f"{name}/{RANK}", "here")
        self.store.wait([f"{name}/{rank}" for rank in range(SIZE)])


def stress(place: Place) -> Any:
    whole = place.group("whole").stress(200, 1, 200_000)
    split = place.group("split", part_bytes=75_000).stress(100, 2, 400_000)
    tiny = place.group("tiny").stress(500, 3, 64)
    return [whole, split, tiny]


MEMBERS = [[0, 1, 2, 3], [1, 2], [3, 1, 0], [2, 3], [0, 2, 1], [0, 1, 2, 3]]


def overlapping_groups(place: Place) -> Any:
    """Groups that share ranks, each used by a thread of its own."""
    mine = [number for number, ranks in enumerate(MEMBERS) if RANK in ranks]
    groups = {number: place.group(str(number), MEMBERS[number]) for number in mine}
    return run_all(mine, lambda number: groups[number].stress(150, number, 100_000))


def groups_made_by_threads(place: Place) -> Any:
    """The same, the groups made by their threads, all at once."""
    mine = [number for number, ranks in enumerate(MEMBERS) if RANK in ranks]

    def run(number: int) -> int:
        return place.group(str(number), MEMBERS[number]).stress(100, number, 100_000)

    return run_all(mine, run)


def run_all(numbers: list[int], run: Callable[[int], int]) -> dict[int, Any]:
    """What `run` returns for each, or its error in words, all at once."""
    outcomes = on_threads(len(numbers), lambda i: run(numbers[i]))
    return {
        number: repr(one) if isinstance(one, Exception) else one
        for number, one in zip(numbers, outcomes, strict=True)
    }


def many_groups(place: Place) -> Any:
    """More groups than a library has communicators, each with a message left behind."""
    count = int(os.environ["CGX_TEST_GROUPS"])
    for number in range(count if RANK < 2 else 0):
        group = place.group(str(number), [0, 1])
        peer = 1 - RANK
        coming = group.receive(peer, 0, 8)
        group.send(peer, 0, b"%8d" % number)
        group.send(peer, 1, b"stale")
        assert int(coming.wait()) == number
        group.close()
    return count


def _sum_over_mpi4py() -> int:
    from mpi4py import MPI

    return int(MPI.COMM_WORLD.allreduce(RANK + 1))


def mpi4py_before(place: Place) -> Any:
    first = _sum_over_mpi4py()
    checked = place.group("a").stress(50)
    return [first, checked > 0, _sum_over_mpi4py()]


def mpi4py_after(place: Place) -> Any:
    group = place.group("a")
    first = _sum_over_mpi4py()
    checked = group.stress(50)
    return [first, checked > 0, _sum_over_mpi4py()]


def mpi4py_at_the_same_time(place: Place) -> Any:
    group = place.group("a")
    sums: list[int] = []
    thread = threading.Thread(target=lambda: sums.extend(_sum_over_mpi4py() for _ in range(300)))
    thread.start()
    checked = group.stress(200)
    thread.join()
    return [set(sums) == {SIZE * (SIZE + 1) // 2}, checked > 0]


def mpi4py_finalizes(place: Place) -> Any:
    from mpi4py import MPI

    group = place.group("a")
    coming = group.receive(1 - RANK, 0, 10)
    place.meet("all")
    MPI.Finalize()
    waited = failure(lambda: coming.wait(5))
    sent = failure(lambda: group.send(1 - RANK, 0, b"x"))
    coming.drop()
    group.close()
    return [waited, sent, failure(lambda: place.group("b"))]


def mpi4py_finalizes_amid_calls(place: Place) -> Any:
    """Threads of this rank are inside MPI nearly all the time."""
    from mpi4py import MPI

    group = place.group("a")
    said = []

    def post() -> None:
        posted = []
        try:
            while True:
                posted.append(group.receive(1 - RANK, 0, 10))
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=post) for _ in range(2)]
    place.meet("all")
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    MPI.Finalize()
    for thread in threads:
        thread.join()
    return said


def low_thread_level(place: Place) -> Any:
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI

    assert MPI.Query_thread() == MPI.THREAD_SERIALIZED
    return failure(lambda: place.group("a"))


def deadline(place: Place) -> Any:
    """Rank 0 waits in vain and gives up; the others learn of it."""
    group = place.group("a")
    start = time.monotonic()
    if RANK == 0:
        said = failure(lambda: group.receive(1, 0, 10).wait(0.5))
        group.abort(said)
    else:
        said = failure(lambda: group.receive(0, 0, 10).wait(60))
    return [said, time.monotonic() - start]


def nobody_comes(place: Place) -> Any:
    """Rank 1 takes part in everything but MPI_Comm_create_group."""
    import mpi4py.MPI as MPI

    if RANK == 0:
        place.store.wait(["a/cgx/mpi/kept/1"])
        start = time.monotonic()
        said = failure(lambda: place.group("a", timeout=1))
        took = time.monotonic() - start
        place.store.set("over", "yes")
        return [said, took]
    store = dist.PrefixStore("a", place.store)
    library = MPI.Get_library_version().splitlines()[0].strip("\0")
    job = os.environ.get("PMIX_NAMESPACE", "")
    store.set("cgx/mpi/rank/1", f"\n{RANK}\n{SIZE}\n{library[:255]}\n{job}\n{4 << 20}\nx")
    store.set("cgx/mpi/kept/1", "")
    place.store.wait(["over"])
    return None


def init_of_some(place: Place) -> Any:
    """Rank 1 does not use MPI at all."""
    if RANK == 1:
        place.store.wait(["over"])
        return None
    said = failure(lambda: place.group("a", [0], timeout=1))
    place.store.set("over", "yes")
    if "PMI_RANK" in os.environ:
        # At its end the process would wait for MPI_Init_thread. MPICH and its launcher spin during
        # that wait, so the test with Open MPI covers it alone.
        atexit.register(os._exit, 0)
    return said


def left_pending(place: Place) -> Any:
    """Ends with transfers under way, and nothing closed."""
    group = place.group("a")
    group.receive(1 - RANK, 0, 10)
    group.send(1 - RANK, 1, bytes(5_000_000))
    globals()["kept"] = [group.receive(1 - RANK, 2, 10), group]
    return "at the end"


def _break_after_meeting(place: Place) -> Any:
    group = place.group("a")
    place.meet("all")
    if RANK == 1:
        raise RuntimeError("rank one is unwell")
    return failure(lambda: group.receive(1, 0, 10).wait(100))


def exception(place: Place) -> Any:
    return _break_after_meeting(place)


def exception_under_mpi4py(place: Place) -> Any:
    import mpi4py.MPI  # noqa: F401  (initialises)

    return _break_after_meeting(place)


def killed(place: Place) -> Any:
    group = place.group("a")
    place.meet("all")
    if RANK == 1:
        os.kill(os.getpid(), 9)
    return failure(lambda: group.receive(1, 0, 10).wait(100))


def idle(place: Place) -> Any:
    """CPU time of two seconds with a receive that nobody waits for, and of two with none."""
    group = place.group("a")
    place.meet("all")
    seconds = []
    peer = RANK ^ 1
    coming = group.receive(peer, 0, 1)
    for _ in range(2):
        before = time.process_time()
        time.sleep(2)
        seconds.append(time.process_time() - before)
        if len(seconds) == 1:
            group.send(peer, 0, b"x")
            coming.wait()
            time.sleep(1.5)
    return seconds


def forked(place: Place) -> Any:
    group = place.group("a")
    child = os.fork()
    if child == 0:
        said = failure(lambda: group.send(RANK ^ 1, 0, b"x"))
        (place.folder / f"child-{RANK}").write_text(said)
        sys.exit(0)  # with everything that runs at exit
    os.waitpid(child, 0)
    return [(place.folder / f"child-{RANK}").read_text(), group.stress(50)]


def late(place: Place) -> Any:
    """The others are at the end long before rank 0."""
    if RANK == 0:
        time.sleep(3)
    return RANK


def main() -> None:
    folder, *names = sys.argv[1:]
    for name in names:
        place = Place(Path(folder) / name)
        result = globals()[name](place)
        (Path(folder) / f"{name}-{RANK}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
