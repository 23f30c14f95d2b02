"""Works of torch.distributed whose end has something left to do on this rank."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from torch_cgx import _C


class WorkWithEnd(dist.Work):
    """A work that is complete when another one is and `end` has run: once, in the first of wait(),
    is_completed() and the future to see the other's end. `tensor`: what `end` writes. What `end`
    raises, every wait() raises.
    """

    ends_failures = True  # `end` also runs if the other work has failed

    def __init__(self, work: dist.Work, tensor: torch.Tensor, end: Callable[[], None]):
        super().__init__()
        self._work, self._tensor, self._end = work, tensor, end
        self._lock = threading.Lock()
        self._ended = False
        self._error: Exception | None = None  # of `end`
        self._event: Any = None  # of a GPU: `end` has run

    def wait(self, timeout: Any = None) -> bool:
        try:
            done = self._work.wait() if timeout is None else self._work.wait(timeout)
        except BaseException:
            if self.ends_failures and self._work.is_completed():  # a wait may run out before it
                self._settle()
            raise
        self._settle()
        self._raise()
        return bool(done)

    def is_completed(self) -> bool:
        done = bool(self._work.is_completed())
        if done:
            self._settle()
        return done

    def is_success(self) -> bool:
        return self._error is None and bool(self._work.is_success())

    def exception(self) -> Any:
        return self._error or self._work.exception()

    def synchronize(self) -> None:
        self._work.synchronize()
        self._settle()
        self._raise()

    def result(self) -> list[torch.Tensor]:
        return [self._tensor]

    def source_rank(self) -> int:
        """Of a receive: the sender's rank in the group."""
        return int(self._work._source_rank())

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        """Holds a list of the tensor."""
        return _C.tensor_future(self._work, [self._tensor], self._settle_or_raise)

    def tensor_future(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Holds `tensor`, which is the one that `end` writes."""
        return _C.tensor_future(self._work, tensor, self._settle_or_raise)

    def _settle_or_raise(self) -> None:
        self._settle()
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _settle(self) -> None:
        device = self._tensor.device
        if not self.ends_failures:
            try:
                self._work.wait()  # over: at once
            except Exception:  # its waiters get it
                return
        with self._lock:
            if not self._ended:
                self._ended = True
                try:
                    with torch.no_grad():
                        self._end()
                except Exception as error:
                    self._error = error
                if device.type == "cuda":
                    self._event = torch.Event(device)
                    self._event.record(torch.accelerator.current_stream(device))
            elif self._event is not None:  # perhaps on another stream
                torch.accelerator.current_stream(device).wait_event(self._event)
