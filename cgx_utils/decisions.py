"""The bits of each layer of one `CGXState`: measured on every rank, decided alike, then held.

At a step that is measured each rank encodes and decodes its own gradients with every candidate,
before they are reduced. After the last bucket the ranks sum their squared errors and squares in one
all-reduce of float64 values, (candidates + 1) for each layer. All ranks then have the same numbers
and compute the same decision, which holds from the next step on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from cgx_utils.adaptive import AdaptiveBits, choose
from cgx_utils.names import Names
from cgx_utils.saved import check_adaptive, check_model
from torch_cgx._policy.names import translate

if TYPE_CHECKING:
    from torch_cgx._C import Codec

FIRST = 2  # the step that is measured first, counted from 1
_BY_NAME = ("bits", "errors", "model")  # keys of a saved decision that are dicts by name
_WHERE = "load_state_dict of a CGXState: adaptive"
SAMPLE = 1 << 16  # values of a layer that are measured, at least


@dataclass(frozen=True)
class Layer:
    """A layer whose bits are decided. codecs: of the candidates, in their order."""

    name: str
    numel: int
    dtype: torch.dtype
    codecs: tuple[Codec, ...]

    @property
    def sizes(self) -> list[int]:
        """Bytes of one encoding with each candidate."""
        return [codec.encoded_bytes(self.numel, self.dtype) for codec in self.codecs]

    def measure(self, values: torch.Tensor, rank: int, step: int) -> torch.Tensor:
        """The squared error of each candidate and, last, the sum of squares: float64 [candidates +
        1], on the device of `values` [numel].

        A long layer is represented by whole buckets of the codec, evenly spread; their sums are
        scaled up. The buckets depend on the step and are the same on all ranks.
        """
        sample = sample_of(values, math.lcm(*(codec.granule for codec in self.codecs)), step)
        exact = sample.double()
        sums = []
        for codec in self.codecs:
            payload = codec.encode(sample, step, rank)
            decoded = codec.decode(payload, torch.empty_like(sample))
            sums.append((decoded.double() - exact).square().sum())
        sums.append(exact.square().sum())
        return torch.stack(sums) * (self.numel / max(1, sample.numel()))


def sample_of(values: torch.Tensor, unit: int, step: int) -> torch.Tensor:
    """At least `SAMPLE` values in units of `unit`; all of a layer that is hardly longer."""
    values = values.detach().reshape(-1)
    units = values.numel() // unit
    wanted = -(-SAMPLE // unit)
    if units < 2 * wanted:
        return values
    # Other units at each step, so that all values of the layer are measured in the end.
    first = step % (units // wanted)
    chosen = [first + i * units // wanted for i in range(wanted)]
    table = values[: units * unit].view(units, unit)
    index = torch.tensor(chosen, dtype=torch.int64, device=values.device)
    return table[index].reshape(-1)


class Decisions:
    """Measures, decides and remembers. Not thread-safe, as the `CGXState` that has it.

    parameters: what to decide; start_bits: of layers without a decision; None: the largest
    candidate in the budget.
    """

    def __init__(self, parameters: AdaptiveBits, start_bits: int | None = None):
        self.parameters = parameters
        self.start_bits = parameters.start_bits if start_bits is None else start_bits
        self.step = 1  # that runs, or comes next
        self.due = FIRST  # the next step that is measured
        self.bits: dict[str, int] = {}  # decided, by the name of the layer
        self.errors: dict[str, float | None] = {}  # relative, with these bits
        self.layers: dict[int, Layer] = {}  # by id of the parameter
        self.model: dict[str, int] = {}  # that was decided for: numbers of values by name
        self._translated = True  # names and bits are keyed by this model's parameters
        self.news = ""  # a line about the last decision, until it is logged
        self._sums: dict[str, tuple[Layer, torch.Tensor]] = {}
        self._pending: tuple[list[Layer], torch.Tensor, Any] | None = None

    @property
    def measures(self) -> bool:
        """Whether this step's gradients are measured."""
        return self.step >= self.due

    def bits_of(self, name: str) -> int:
        return self.bits.get(name, self.start_bits)

    def measure(self, parameter: torch.Tensor, values: torch.Tensor, rank: int) -> None:
        """Measures the gradient of a parameter on this rank, if its bits are decided."""
        layer = self.layers.get(id(parameter))
        if layer is not None:
            self._sums[layer.name] = layer, layer.measure(values, rank, self.step)

    def end_step(self, group: dist.ProcessGroup) -> None:
        """After the last bucket of a step: starts the all-reduce of what was measured. Collective,
        at the same steps on all ranks.
        """
        if self.measures and self._sums:
            measured = [self._sums[name] for name in sorted(self._sums)]
            layers = [layer for layer, _ in measured]
            sums = torch.stack([values for _, values in measured])
            work = dist.all_reduce(sums, group=group, async_op=True)
            self._pending = (layers, sums, work)
        self._sums = {}
        self.step += 1

    def settle(self) -> bool:
        """Turns the sums of the last step, if it was measured, into a decision; waits for them.
        True if it changes any bits; `news` then says which.

        The decision is put off to the next step if the sums are not finite, or all zero.
        ValueError, on all ranks, if no bits are within the error budget at the first decision.
        """
        if self._pending is None:
            return False
        (layers, sums, work), self._pending = self._pending, None
        work.wait()
        table = sums.tolist()
        measured = self.step - 1
        total = math.fsum(row[-1] for row in table)
        if not all(math.isfinite(x) for row in table for x in row) or total == 0:
            self.due = self.step
            return False
        self.due = measured + min(self.parameters.every, measured)
        before = dict(self.bits)
        picked = self.decide(layers, table)
        candidates = self.parameters.candidates
        error = 0.0
        for layer, row, i in zip(layers, table, picked, strict=True):
            self.bits[layer.name] = candidates[i]
            self.errors[layer.name] = math.sqrt(row[i] / row[-1]) if row[-1] else None
            error += row[i]
        if self.bits == before:
            return False
        sizes = [layer.sizes[i] for layer, i in zip(layers, picked, strict=True)]
        chosen = [candidates[i] for i in picked]
        self.news = self._line(measured, chosen, sum(sizes), error / total)
        return True

    def decide(self, layers: list[Layer], table: list[list[float]]) -> list[int]:
        """The candidate of each layer. A layer of zeros says nothing of its next gradients: it gets
        the bits that a layer without a decision has, in its own share of the budget.
        """
        parameters = self.parameters
        picked = [parameters.candidates.index(parameters.start_bits)] * len(layers)
        known = [n for n, row in enumerate(table) if row[-1] > 0]
        errors = [table[n][:-1] for n in known]
        sizes = [layers[n].sizes for n in known]
        if parameters.error_budget is None:
            found = choose(errors, sizes, most_bytes=parameters.budget_bytes(sizes))
        else:
            squares = math.fsum(table[n][-1] for n in known)
            limit = parameters.error_budget**2 * squares
            least = math.fsum(min(row) for row in errors)
            if least > limit and not self.bits:
                raise ValueError(
                    f"error_budget={parameters.error_budget!r} cannot be met: the relative error "
                    f"of {len(known)} layers with the best of the candidates "
                    f"{parameters.candidates} is {math.sqrt(least / squares):.3g}; allowed: that "
                    "or more, or more bits among the candidates"
                )
            # Later in a training, the decision that comes nearest is better than an error; the log
            # line shows its error.
            found = choose(errors, sizes, most_error=max(limit, least))
        for n, i in zip(known, found, strict=True):
            picked[n] = i
        return picked

    def _line(self, step: int, bits: list[int], nbytes: int, error: float) -> str:
        counts = ", ".join(f"{bits.count(b)} with {b}" for b in sorted(set(bits)))
        budget = self.parameters.error_budget
        limit = f", budget {budget:g}" if budget is not None else ""
        return (
            f"bits of {len(bits)} layers, decided from step {step}: {counts}; {nbytes} bytes per "
            f"encoding; relative error {math.sqrt(error):.3g}{limit}"
        )

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        copies = {key: dict(getattr(self, key)) for key in _BY_NAME}
        return {"step": self.step, "due": self.due, **copies}

    def load_state_dict(self, state: Mapping[str, Any], names: Names) -> None:
        """ValueError: of another model, or with bits that are no candidate."""
        check_adaptive(state, self.parameters.candidates)
        found, named = dict(state), names.named()
        if named:
            found |= {key: translate(found[key], named, _WHERE) for key in _BY_NAME}
        check_model(found["model"], names.known())
        self.step, self.due = found["step"], found["due"]
        self.bits, self.errors = dict(found["bits"]), dict(found["errors"])
        self.model = dict(found["model"])
        self._translated = bool(named)
        self._sums, self._pending = {}, None

    def fit(self, names: Names) -> None:
        """Before layers are added: to the model with these names. ValueError: what was loaded is of
        another one.
        """
        if not self._translated and (named := names.named()):
            for key in _BY_NAME:
                setattr(self, key, translate(getattr(self, key), named, _WHERE))
            self._translated = True
        check_model(self.model, names.known())
        self.model = {name: parameter.numel() for name, parameter in names.known()}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "layers": {}, "_sums": {}, "_pending": None}

    def forget(self, gone: bool) -> None:
        """Drops the layers; with `gone`, what a model and a group that are gone have left, too."""
        self.layers = {}
        if gone:
            self.model = {}
            self._sums, self._pending = {}, None
