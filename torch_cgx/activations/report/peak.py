"""The peak of a training step's memory: what was allocated in it and lived at the same time."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

import torch

from torch_cgx.cli.output import without_log_of_torch

CUDA = "the CUDA allocator"
PROFILER = "allocations on the CPU (torch.autograd.profiler)"
SAVED = "saved tensors only"


class Peak:
    """Measures what is allocated inside a `with`, beyond what was there before.

    On GPUs: the difference that `torch.cuda.max_memory_allocated` shows, summed over devices; its
    statistics are reset. On the CPU: the running sum of torch's allocations and releases, which the
    profiler records. Elsewhere (meta tensors, a profiler that is already running): unknown.
    """

    def __init__(self, devices: Iterable[torch.device]) -> None:
        kinds = {device.type for device in devices}
        self._gpus = sorted({d.index or 0 for d in devices if d.type == "cuda"})
        self._before: dict[int, int] = {}
        self._profile = None
        if kinds <= {"cpu"} and not torch._C._autograd._profiler_enabled():
            self._profile = torch.autograd.profiler.profile(profile_memory=True)
        self._result: tuple[int, str] | None = None

    def __enter__(self) -> Peak:
        for gpu in self._gpus:
            torch.cuda.reset_peak_memory_stats(gpu)
            self._before[gpu] = torch.cuda.memory_allocated(gpu)
        if self._profile is not None:
            with without_log_of_torch():  # libkineto writes two lines on stderr
                self._profile.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._gpus:
            peaks = (torch.cuda.max_memory_allocated(d) - n for d, n in self._before.items())
            self._result = sum(peaks), CUDA
        if self._profile is not None:
            with without_log_of_torch():
                self._profile.__exit__(kind, error, trace)
            self._result = _largest(self._profile), PROFILER

    def found(self, saved: int) -> tuple[int, str]:
        """(bytes, where they are from). saved: the peak of saved tensors, where nothing else is
        known.
        """
        return self._result if self._result is not None else (saved, SAVED)


def _largest(profile: torch.autograd.profiler.profile) -> int:
    now = most = 0
    assert profile.kineto_results is not None
    for event in profile.kineto_results.events():
        if event.name() == "[memory]" and event.device_type() == torch._C._autograd.DeviceType.CPU:
            now += event.nbytes()  # type: ignore[attr-defined]
            most = max(most, now)
    return most
