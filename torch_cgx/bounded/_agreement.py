"""Checks that all ranks of a group continue, or that all raise."""

from __future__ import annotations

import contextlib
import hashlib
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

_MOST_TEXT = 4096  # an error that other ranks show is cut to this number of characters


@dataclass
class Agreed:
    """Lines that must be equal on all ranks."""

    lines: list[str] = field(default_factory=list)


class Posted:
    """A broadcast that has been started."""

    def __init__(self, channel: Channel, work: Any, tensor: torch.Tensor) -> None:
        self._channel = channel
        self._work = work
        self._tensor = tensor

    def wait(self) -> torch.Tensor:
        """Waits for the broadcast; returns the tensor, on the CPU."""
        with self._channel.communicating():
            self._work.wait()
            return self._tensor.cpu()


class Channel:
    """Broadcasts CPU tensors from one rank of a group; copies them through GPU memory if the group
    has no CPU backend. src: as in torch.distributed.broadcast. An error of the backend (a rank died
    or timed out) is raised unchanged and sets `broken`.
    """

    def __init__(self, group: Any, src: Any) -> None:
        import torch.distributed as dist

        self._dist = dist
        self._group = group
        self.src = src
        self._ranks = [
            dist.get_global_rank(group, rank) if group is not None else rank
            for rank in range(dist.get_world_size(group))
        ]
        self._rank = dist.get_rank(group)
        backends = dist.get_backend_config(group).split(",")  # "cpu:gloo", "cuda:nccl"
        devices = [backend.partition(":")[0] for backend in backends]
        self._device = torch.device("cpu" if "cpu" in devices else devices[0])
        self.broken = False

    @property
    def is_source(self) -> bool:
        return bool(self._ranks[self._rank] == self.src)

    def check_source(self) -> None:
        """TypeError, ValueError: src is not a rank of the group."""
        try:
            if isinstance(self.src, bool):
                raise TypeError
            self.src = operator.index(self.src)  # also accepts NumPy's integers
        except TypeError:
            raise TypeError(f"src is {self.src!r}, expected a rank") from None
        if self.src not in self._ranks:
            raise ValueError(f"src is {self.src}, allowed: the group's ranks, {self._ranks}")

    def post(self, tensor: torch.Tensor) -> Posted:
        """Begins the broadcast of a tensor that has the same shape and dtype on all ranks."""
        with self.communicating():
            here = tensor.to(self._device)
            return Posted(
                self, self._dist.broadcast(here, self.src, self._group, async_op=True), here
            )

    @contextlib.contextmanager
    def communicating(self) -> Iterator[None]:
        """For a body that communicates: an error in it sets `broken`, as this rank then no longer
        makes the same calls as the others.
        """
        try:
            yield
        except BaseException:
            self.broken = True
            raise

    @contextlib.contextmanager
    def together(self, what: str, error_of_others: type[Exception]) -> Iterator[Agreed]:
        """Runs the body on all ranks, then compares the results. If the body raises an Exception on
        a rank, all ranks raise: that rank its own error, the others `error_of_others`, whose text
        names the ranks and their errors. If no body raises and the lines of the ranks differ, all
        ranks raise a ValueError that names a difference. An error of the backend is raised at once.
        """
        agreed = Agreed()
        failed: Exception | None = None
        try:
            yield agreed
        except Exception as error:
            if self.broken:
                raise
            failed = error
        text = "\n".join(agreed.lines)
        if failed is not None:
            text = f"{type(failed).__name__}: {failed}"[:_MOST_TEXT]
        digest = hashlib.sha256(text.encode(errors="replace")).digest()
        mine = torch.tensor([failed is not None, *digest], dtype=torch.uint8, device="cpu")
        all_equal = [one.tolist() for one in self._gather(mine)]
        if failed is None and all(one == all_equal[0] for one in all_equal):
            return
        texts = self._gather_text(text)
        if failed is not None:
            raise failed
        broken = [rank for rank, one in enumerate(all_equal) if one[0]]
        if broken:
            causes = "; ".join(f"rank {self._ranks[rank]}: {texts[rank]}" for rank in broken)
            raise error_of_others(f"{what} failed on {causes}")
        raise ValueError(f"{what}: arguments differ between ranks: {self._difference(texts)}")

    def _gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        with self.communicating():
            here = tensor.to(self._device)
            found = [torch.empty_like(here) for _ in self._ranks]
            self._dist.all_gather(found, here, self._group)
            return [one.cpu() for one in found]

    def _gather_text(self, text: str) -> list[str]:
        data = text.encode(errors="replace")
        size = torch.tensor([len(data)], dtype=torch.int64, device="cpu")
        sizes = [int(one) for one in self._gather(size)]
        padded = torch.zeros(max(max(sizes), 1), dtype=torch.uint8, device="cpu")
        padded[: len(data)] = torch.tensor(list(data), dtype=torch.uint8, device="cpu")
        found = zip(self._gather(padded), sizes, strict=True)
        return [bytes(one[:size].tolist()).decode(errors="replace") for one, size in found]

    def _difference(self, texts: list[str]) -> str:
        """The first line that differs between the first rank and another."""
        other = next(rank for rank, text in enumerate(texts) if text != texts[0])
        here, there = texts[0].split("\n"), texts[other].split("\n")
        for a, b in zip(here, there, strict=False):
            if a != b:
                return f"on rank {self._ranks[0]} {a}; on rank {self._ranks[other]} {b}"
        short, long = sorted((len(here), len(there)))
        more, extra = (0, here) if len(here) == long else (other, there)
        return (
            f"rank {self._ranks[0]} has {len(here) - 1} tensors, rank {self._ranks[other]} has "
            f"{len(there) - 1}; only on rank {self._ranks[more]} {extra[short]}"
        )
