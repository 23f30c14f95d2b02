"""The model that `cgx advise` is asked about: its layers and, where it can run, its time."""

from __future__ import annotations

import importlib
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_cgx.cli.errors import CliError
from torch_cgx.cli.output import tenths
from torch_cgx.cost import Layer, buckets_of

_WARM_UP, _STEPS = 2, 7
_GRADIENTS = 4  # batches whose gradients stand for those of ranks
_LONGEST = 30.0  # seconds of measuring


@dataclass
class Source:
    """layers: in the model's order. module, step: None where only sizes are known."""

    layers: list[Layer]
    module: Any = None
    step: Callable[[], Any] | None = None


@dataclass
class Profile:
    """buckets: as DDP has them. compute_seconds: of a step without communication; None: unknown.
    ready: when each bucket is. gradients: of some batches, by name.
    """

    layers: list[Layer]
    buckets: list[list[Layer]]
    compute_seconds: float | None
    compute_source: str
    ready: tuple[float, ...]
    error_source: str
    gradients: list[dict[str, Any]] = field(default_factory=list)
    spread: float = 0.0  # of the measured steps: half of 10th to 90th percentile, by the median


def load(model: str | None, checkpoint: Path | None, folder: str) -> Source:
    """folder: where modules are looked for first."""
    if checkpoint is not None:
        return _of_checkpoint(checkpoint)
    assert model is not None
    return _of_factory(model, folder)


def _of_factory(name: str, folder: str) -> Source:
    import torch

    module_name, colon, function = name.partition(":")
    if not (module_name and colon and function):
        raise CliError(f"--model {name}: allowed: MODULE:FACTORY, as in train:make_model")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        factory = getattr(importlib.import_module(module_name), function)
        made = factory()
    except Exception as error:  # of the user's code
        line = (str(error).splitlines() or [""])[0]
        raise CliError(f"--model {name}: {type(error).__name__}: {line}") from None
    module, step = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, torch.nn.Module) or not (step is None or callable(step)):
        raise CliError(
            f"--model {name} returned an object of type {type(made).__name__}; allowed: a "
            "torch.nn.Module, or (module, step) with a function step() that returns the loss"
        )
    layers = [Layer(n, tuple(p.shape), p.element_size()) for n, p in _trained(module)]
    if not layers:
        raise CliError(f"--model {name}: the module has no parameters that are trained")
    return Source(layers, module, step)


def _trained(module: Any) -> list[tuple[str, Any]]:
    """Name and parameter of each parameter that is trained: tied ones once, without wrappers."""
    from torch_cgx._policy.names import named_of

    return [(o.name, o.parameter) for o in named_of(module) if o.parameter.requires_grad]


def _of_checkpoint(path: Path) -> Source:
    import torch

    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror or error}") from None
    except Exception:
        raise CliError(
            f"--checkpoint {path}: torch.load(weights_only=True) does not take it; allowed: a "
            "state dict, as of torch.save(model.state_dict(), FILE)"
        ) from None
    for key in ("state_dict", "model", "module"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
            break
    layers = []
    if isinstance(found, Mapping):
        from torch_cgx._policy.names import once

        tensors = {
            str(n): t
            for n, t in found.items()
            if isinstance(t, torch.Tensor) and t.is_floating_point() and t.numel()
        }
        layers = [
            Layer(shown, tuple(tensors[name].shape), tensors[name].element_size())
            for name, shown in once(tensors).items()
        ]
    if not layers:
        raise CliError(
            f"--checkpoint {path} holds no floating-point tensors by name; allowed: a state dict, "
            "alone or under the key state_dict, model or module"
        )
    return Source(layers)


def profile(source: Source, compute_ms: float | None) -> Profile:
    """Measures the computation and the gradients where the model can run."""
    buckets = buckets_of(source.layers)
    if source.step is None:
        seconds = None if compute_ms is None else compute_ms / 1e3
        spread = _spread(buckets, seconds or 0.0)
        origin = "unknown: times are of communication alone"
        if seconds is not None:
            origin = "as said (--compute-ms)"
        return Profile(source.layers, buckets, seconds, origin, spread, "Gaussian values")
    times, ready_of, gradients = _measure(source)
    seconds = statistics.median(times)
    low, high = tenths(times)
    ready = []
    for bucket in buckets:
        ready.append(max(ready_of.get(layer.name, seconds) for layer in bucket))
        ready[-1] = max(ready[-2:])
    origin = f"measured here, {_threads()} threads"
    if compute_ms is not None:  # what is beside the measured part follows the backward pass
        if compute_ms / 1e3 < seconds:
            raise CliError(
                f"--compute-ms {compute_ms:g} is less than the {1e3 * seconds:.1f} ms that forward "
                "and backward pass take here"
            )
        seconds, origin = compute_ms / 1e3, "as said (--compute-ms)"
    source_of_errors = f"gradients of {len(gradients)} batches"
    return Profile(
        source.layers,
        buckets,
        seconds,
        origin,
        tuple(ready),
        source_of_errors,
        gradients,
        spread=(high - low) / 2 / statistics.median(times),
    )


def _threads() -> int:
    import torch

    return torch.get_num_threads()


def _spread(buckets: list[list[Layer]], seconds: float) -> tuple[float, ...]:
    """The backward pass is assumed to take two thirds of a step, evenly over the bytes."""
    total = sum(layer.nbytes for bucket in buckets for layer in bucket)
    done, moments = 0, []
    for bucket in buckets:
        done += sum(layer.nbytes for layer in bucket)
        moments.append(seconds / 3 + seconds * 2 / 3 * done / total)
    return tuple(min(moment, seconds) for moment in moments)


def _measure(source: Source) -> tuple[list[float], dict[str, float], list[dict[str, Any]]]:
    """Seconds of forward and backward pass of each step; when each gradient is ready, a median over
    steps; gradients of batches.
    """
    begin = 0.0
    moments: dict[str, list[float]] = {}
    named = _trained(source.module)
    handles = [
        p.register_post_accumulate_grad_hook(
            lambda _, n=n: moments.setdefault(n, []).append(time.perf_counter() - begin)
        )
        for n, p in named
    ]
    times: list[float] = []
    gradients: list[dict[str, Any]] = []
    started = time.perf_counter()
    try:
        for number in range(_WARM_UP + _STEPS):
            source.module.zero_grad(set_to_none=True)
            begin = time.perf_counter()
            assert source.step is not None
            loss = source.step()
            loss.backward()
            times.append(time.perf_counter() - begin)
            if len(gradients) < _GRADIENTS:
                found = {n: p.grad.detach().clone() for n, p in named if p.grad is not None}
                gradients.append(found)
            if number > _WARM_UP and time.perf_counter() - started > _LONGEST:
                break
    except Exception as error:  # of the user's code
        line = (str(error).splitlines() or [""])[0]
        raise CliError(f"--model: step() failed: {type(error).__name__}: {line}") from None
    finally:
        for handle in handles:
            handle.remove()
    value = float(loss.detach())
    if not math.isfinite(value):
        raise CliError(f"--model: step() returned the loss {value}, which is not finite")
    kept = times[min(_WARM_UP, len(times) - 1) :]
    ready = {n: statistics.median(found[-len(kept) :]) for n, found in moments.items()}
    seconds = statistics.median(kept)
    return kept, {n: min(moment, seconds) for n, moment in ready.items()}, gradients
