"""How long a step takes, and each choice of what is kept."""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from torch_cgx.activations.conversion.replaceable import Wanted, new_function, replacement
from torch_cgx.activations.projection.modules import settings_of
from torch_cgx.activations.saved.context import compress_saved

_ROUNDS = 7
_FEW, _LONG = 5, 0.5  # rounds of steps of so many seconds
_SHORT = 0.1  # seconds
_SMALL, _LARGE = 1 << 12, 1 << 19  # values of tensors whose times a line goes through
_TENSORS = 4  # that are saved at once

SetUp = Callable[[], Callable[[], None]]  # changes a model, and returns what takes it back


class Timer:
    """Seconds. Of steps that take turns, the median of their ratios: what else the machine does
    slows both; of all else the least of a few rounds. What repeats is measured once."""

    def __init__(self) -> None:
        self._found: dict[Any, float] = {}

    def step(self, run: Callable[[], Any]) -> float:
        """Of run(), which is a forward and backward pass."""
        return min(_seconds(run) for _ in range(_ROUNDS))

    def ratio(self, run: Callable[[], Any], one: SetUp, other: SetUp) -> float:
        """Of the step with the other set up to the step with the one, in turns."""
        return statistics.median(b / a for a, b in _turns(run, one, other))

    def longer(self, run: Callable[[], Any], other: SetUp) -> float:
        """By how much the step takes longer with the other set up, in turns."""
        pairs = _turns(run, _nothing, other)
        return (statistics.median(b / a for a, b in pairs) - 1) * _least(pairs, 0)

    def forward(
        self, modules: Iterable[tuple[str, nn.Module]], run: Callable[[], Any]
    ) -> dict[str, float]:
        """Seconds of the forward of modules, by name, while run() runs."""
        found: dict[str, list[float]] = {}
        hooks: list[Any] = []
        for name, module in modules:
            _time_of(module, found.setdefault(name, []), hooks)
        try:
            for _ in range(_ROUNDS):
                run()
        finally:
            for hook in hooks:
                hook.remove()
        return {name: min(one) for name, one in found.items()}

    def coding(self, config: Any, numel: int, dtype: torch.dtype, device: torch.device) -> float:
        """Of encoding and decoding a saved tensor in `compress_saved`."""
        key = "coding", repr(config), dtype, device
        at = functools.partial(_of_coding, config, dtype, device)
        small = self._cached((*key, _SMALL), lambda: at(_SMALL))
        large = self._cached((*key, _LARGE), lambda: at(_LARGE))
        return small + max(large - small, 0.0) * (numel - _SMALL) / (_LARGE - _SMALL)

    def activation(self, module: nn.Module, bits: int, values: tuple[Any, ...]) -> float:
        """How much longer the few-bit function takes. values: shape, type and device."""
        wanted = Wanted(bits, False, False, False)
        function = new_function(module, wanted)
        if callable(function):
            old, new = module.activation, function  # type: ignore[assignment]
            kind = getattr(old, "__name__", "")
        else:
            old, new = module, replacement(module, wanted)  # type: ignore[assignment]
            kind = f"{type(module).__name__} {module.extra_repr()}"
        key = "activation", kind, bits, *values
        return self._cached(key, lambda: self._longer(old, new, values))

    def linear(self, module: nn.Module, settings: Any, values: tuple[Any, ...]) -> float:
        """How much longer a linear layer takes that keeps a part of its input."""
        wanted = Wanted(None, False, False, False, settings_of(settings, "linear"))
        new = replacement(module, wanted)
        key = "linear", repr(settings), tuple(module.weight.shape), *values  # type: ignore[arg-type]
        return self._cached(key, lambda: self._longer(module, new, values))

    def _longer(self, old: Any, new: Any, values: tuple[Any, ...]) -> float:
        x = _random(*values).requires_grad_()
        own = [p for p in old.parameters() if p.requires_grad] if hasattr(old, "parameters") else []

        def run(function: Any) -> None:
            with torch.enable_grad(), torch.random.fork_rng():
                torch.autograd.grad(function(x).sum(), [x, *own], allow_unused=True)

        run(old)
        run(new)
        pairs = [(_seconds(lambda: run(old)), _seconds(lambda: run(new))) for _ in range(_ROUNDS)]
        return _least(pairs, 1) - _least(pairs, 0)

    def _cached(self, key: Any, make: Callable[[], float]) -> float:
        if key not in self._found:
            self._found[key] = make()
        return self._found[key]


def _of_coding(config: Any, dtype: torch.dtype, device: torch.device, numel: int) -> float:
    """Seconds of what hooks do to one saved tensor of several."""
    given = _random((numel,), dtype, device).requires_grad_()
    with torch.enable_grad():
        tensors = [given * 1 for _ in range(_TENSORS)]
    context = compress_saved(config, filter=_always)

    def run(hooks: Any) -> None:
        with torch.enable_grad():
            with hooks:
                found = [one.square() for one in tensors]
            torch.autograd.grad([one.sum() for one in found], tensors)

    run(context)
    pairs = [
        (_seconds(lambda: run(contextlib.nullcontext())), _seconds(lambda: run(context)))
        for _ in range(_ROUNDS)
    ]
    return max(_least(pairs, 1) - _least(pairs, 0), 0.0) / _TENSORS


def _always(name: str, tensor: Tensor) -> bool:
    """A filter, as `apply` has one: names of modules are looked up."""
    return True


def _nothing() -> Callable[[], None]:
    return lambda: None


def _turns(run: Callable[[], Any], one: SetUp, other: SetUp) -> list[tuple[float, float]]:
    """Pairs of seconds. The first turn is not counted. Of short steps, neither is the
    first after a change, which looks up names of modules."""
    found: list[tuple[float, float]] = []
    rounds, short = _ROUNDS, True
    while len(found) <= rounds:
        pair = []
        for set_up in (one, other):
            remove = set_up()
            try:
                if short:
                    run()
                pair.append(_seconds(run))
            finally:
                remove()
        found.append((pair[0], pair[1]))
        rounds = _FEW if max(pair) > _LONG else _ROUNDS
        short = max(pair) < _SHORT
    return found[1:]


def _least(pairs: list[tuple[float, float]], place: int) -> float:
    return min(pair[place] for pair in pairs)


def _time_of(module: nn.Module, into: list[float], hooks: list[Any]) -> None:
    begun: list[float] = []

    def enter(*_: Any) -> None:
        _wait()
        begun.append(time.perf_counter())

    def leave(*_: Any) -> None:
        _wait()
        into.append(time.perf_counter() - begun.pop())

    hooks.append(module.register_forward_pre_hook(enter))
    hooks.append(module.register_forward_hook(leave))


def _seconds(run: Callable[[], Any]) -> float:
    _wait()
    begun = time.perf_counter()
    run()
    _wait()
    return time.perf_counter() - begun


def _wait() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _random(shape: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(0)
    values = torch.randn(tuple(shape), generator=generator, dtype=torch.float32, device="cpu")
    return values.to(device, dtype)
