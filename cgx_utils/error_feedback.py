"""Error feedback of `CGXState`: what the encodings of earlier steps left out of each gradient, kept
until it is contributed.

The rule is the engine's (docs/numerics.md, Error feedback). Here is where the residuals live: one
flat tensor for each of DDP's buckets, in the order of its parameters, so that a reduction gets it
as it is. When DDP rebuilds its buckets, each parameter's residual moves to its new bucket.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from cgx_utils.resharding import share_of
from torch_cgx._policy.names import Named, translate

if TYPE_CHECKING:
    from torch_cgx._C import Codec
    from torch_cgx.codecs import MaxMin

MEMORIES = ("fp32", "bf16", "8bit")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # of parameters that have residuals
_8BIT_BUCKET = 512  # values that share a scale between the steps
Key = tuple[tuple[int, int], ...]


class Bucket:
    """The residuals of one bucket: `values`, flat, or between the steps of "8bit" the payloads of
    its layers. codec: of "8bit", else None.
    """

    def __init__(self, values: torch.Tensor):
        self.values: torch.Tensor | None = values
        self._layers: list[tuple[int, torch.Tensor | None]] | None = None
        self._numel, self._device = values.numel(), values.device
        self.settled = threading.Event()  # not set: a thread is about to call close() or undo()
        self.settled.set()

    def open(self, codec: MaxMin | None) -> torch.Tensor:
        """The values. Waits for the reduction that writes them, which has a deadline."""
        self.settled.wait()
        if self.values is None:
            self.values = torch.zeros(self._numel, dtype=torch.float32, device=self._device)
            layers = self.values.split([numel for numel, _ in self._layers or ()])
            for layer, (_, payload) in zip(layers, self._layers or (), strict=True):
                if payload is not None:
                    assert codec is not None
                    codec.decode(payload, layer)
        return self.values

    def close(
        self, codec: MaxMin, numels: list[int], firsts: list[int], sequence: int, rank: int
    ) -> None:
        """Encodes each parameter by itself, so that one of zeros stays so, and takes no memory.
        firsts: of each parameter, the number of its first value for the random generator.
        """
        assert self.values is not None
        self._layers = []
        for layer, first in zip(self.values.split(numels), firsts, strict=True):
            payload = None
            if bool(layer.any()):
                payload = codec.encode(layer, sequence=sequence, rank=rank, index=first)
            self._layers.append((layer.numel(), payload))
        self.values = None

    def undo(self) -> None:
        """Back to what the last close() has left, if there was one."""
        if self._layers is not None:
            self.values = None


@dataclass(frozen=True)
class Place:
    """Where the residual of a parameter lies. parameter: kept alive, so that its id stays its."""

    parameter: torch.Tensor
    bucket: Bucket
    first: int


def check_codec(codec: Codec) -> None:
    """ValueError for a codec whose errors may exceed the values (maxmin at 1 bit): its residuals
    would grow without bound.
    """
    from torch_cgx import _C

    _C.check_feedback(codec)


class ErrorFeedback:
    """The residuals of one rank. memory: of a value between the steps: "fp32", "bf16" or "8bit"
    (maxmin with 8 bits, stochastic rounding and buckets of 512: about 1.02 bytes). With "8bit" the
    residuals of the buckets under way are fp32.

    ValueError names a bad argument. Not thread-safe, as CGXState.
    """

    def __init__(self, memory: str):
        if memory not in MEMORIES:
            allowed = ", ".join(map(repr, MEMORIES))
            raise ValueError(f"error_feedback_memory={memory!r}; allowed: {allowed}")
        self.memory = memory
        self._buckets: dict[Key, Bucket] = {}
        self._places: dict[int, Place] = {}  # by id of the parameter
        self._restored: dict[str, dict[str, Any]] = {}  # sections by rank, until a bucket comes
        self._alone = True  # they are the state of one rank
        self._rank, self._ranks = 0, 0  # 0 ranks: not known yet

    @property
    def waits_for_names(self) -> bool:
        """True if residuals were restored that no bucket has taken yet."""
        return bool(self._restored)

    @property
    def has_places(self) -> bool:
        """True if a parameter has a residual."""
        return bool(self._places)

    def clear(self) -> None:
        """Begins with zeros."""
        self._buckets, self._places, self._restored = {}, {}, {}

    def take(
        self,
        key: Key,
        parameters: list[torch.Tensor],
        buffer: torch.Tensor,
        group: dist.ProcessGroup,
    ) -> torch.Tensor:
        """The residual for a bucket: of the shape and on the device of its buffer, fp32 or bf16."""
        self._rank, self._ranks = group.rank(), group.size()
        if self.memory == "8bit" and buffer.device.type != "cpu":
            raise ValueError(
                f"error_feedback_memory='8bit' with gradients on {buffer.device}; allowed there: "
                "'fp32', 'bf16'"
            )
        found = self._buckets.get(key)
        if found is None:
            found = self._buckets[key] = self._assemble(parameters, buffer)
        return found.open(self._codec())

    def keep_after(self, work: dist.Work, key: Key, firsts: list[int], sequence: int) -> None:
        """Called when the reduction that writes the residual was started: "8bit" encodes it,
        parameter by parameter, when that has ended, and before any callback that is added to the
        work's future later. firsts, sequence: for the random generator.
        """
        codec = self._codec()
        if codec is None:
            return
        bucket, numels, rank = self._buckets[key], [numel for _, numel in key], self._rank

        def ended(future: torch.futures.Future[Any]) -> None:
            try:
                future.value()
            except Exception:  # the caller of the reduction gets it
                bucket.undo()
            else:
                bucket.close(codec, numels, firsts, sequence, rank)
            finally:
                bucket.settled.set()

        bucket.settled.clear()
        work.get_future().add_done_callback(ended)

    def keep_only(self, parameters: Iterable[torch.Tensor]) -> None:
        """Forgets all other parameters: the model of an earlier DDP instance."""
        kept = {id(parameter) for parameter in parameters}
        self._places = {key: place for key, place in self._places.items() if key in kept}
        alive = {id(place.bucket) for place in self._places.values()}
        self._buckets = {k: bucket for k, bucket in self._buckets.items() if id(bucket) in alive}

    def restore(self, model: Sequence[Named], group: dist.ProcessGroup | None) -> None:
        """Gives what load() has got to the model's parameters; only checks it without a group.
        ValueError where it is of another model. A warning where residuals are dropped.
        """
        what = "load_state_dict of a CGXState: error_feedback"
        numels = {one.name: one.parameter.numel() for one in model}
        restored = {
            rank: translate(section["residuals"], model, what)
            for rank, section in self._restored.items()
        }
        for own in restored.values():
            _check_names(own, numels)
        if group is None:
            return
        self._rank, self._ranks = group.rank(), group.size()
        saved_ranks = next(iter(self._restored.values()))["world_size"]
        found = share_of(
            restored, saved_ranks, self._rank, self._ranks, "CGXState", alone=self._alone
        )
        for one in model:
            if one.name in found:
                bucket = Bucket(found[one.name].reshape(-1))
                self._places[id(one.parameter)] = Place(one.parameter, bucket, 0)
        self._restored = {}

    def saved(
        self,
        model: Sequence[tuple[str, torch.Tensor]],
        group: dist.ProcessGroup | None,
        step: int = 0,
    ) -> dict[str, dict[str, Any]]:
        """The section of CGXState.state_dict(), by rank: copies, by name, of the shapes of
        parameters; zeros for parameters that have none yet, if the group is known. Of several ranks
        as long as what load() has got waits for names.
        """
        if self._restored:
            return {
                rank: {**section, "residuals": _copies(section["residuals"])}
                for rank, section in self._restored.items()
            }
        names = {id(parameter): name for name, parameter in model}
        residuals = {}
        for key, place in self._places.items():
            if key not in names:
                shape = tuple(place.parameter.shape)
                raise RuntimeError(
                    f"CGXState: a parameter of shape {shape} has a residual and no name; pass "
                    "named_parameters=model.named_parameters()"
                )
            residual = self._residual(place).detach().to("cpu", copy=True)
            residuals[names[key]] = residual.view(place.parameter.shape)
        for place in self._places.values():
            place.bucket.undo()
        if group is not None:
            self._rank, self._ranks = group.rank(), group.size()
            for name, parameter in model:
                if parameter.requires_grad and parameter.dtype in DTYPES:
                    zeros = torch.zeros(parameter.shape, dtype=self._dtype, device="cpu")
                    residuals.setdefault(name, zeros)
        section = {
            "memory": self.memory,
            "rank": self._rank,
            "world_size": self._ranks,
            "sequence": step,
            "residuals": residuals,
        }
        return {str(self._rank): section}

    def detached(self, model: Sequence[tuple[str, torch.Tensor]]) -> ErrorFeedback:
        """A copy without parameters, which waits for names: for pickle."""
        copy = ErrorFeedback(self.memory)
        copy.load(self.saved(model, None))
        return copy

    def load(self, sections: Mapping[str, Mapping[str, Any]], alone: bool = True) -> None:
        """Takes what saved() gave, also of another memory, in place of all residuals;
        check_residuals() has checked it. alone: it is the state of one rank.
        """
        self.clear()
        self._alone = alone
        self._restored = {
            rank: {**section, "residuals": _copies(section["residuals"])}
            for rank, section in sections.items()
            if section["world_size"] > 0  # else of a state that was not used
        }

    @property
    def _dtype(self) -> torch.dtype:
        """While a bucket is under way."""
        return torch.bfloat16 if self.memory == "bf16" else torch.float32

    def _codec(self) -> MaxMin | None:
        from torch_cgx.codecs import MaxMin  # loads the engine

        if self.memory != "8bit":
            return None
        return MaxMin(bits=8, bucket_size=_8BIT_BUCKET, rounding="stochastic")

    def _assemble(self, parameters: list[torch.Tensor], buffer: torch.Tensor) -> Bucket:
        """A bucket of these parameters, with what they have owed in other buckets."""
        values = torch.zeros(buffer.shape, dtype=self._dtype, device=buffer.device)
        made, first = Bucket(values), 0
        for parameter in parameters:
            old = self._places.get(id(parameter))
            if old is not None:
                values[first : first + parameter.numel()].copy_(self._residual(old))
                outdated = [key for key, one in self._buckets.items() if one is old.bucket]
                for key in outdated:
                    del self._buckets[key]
            self._places[id(parameter)] = Place(parameter, made, first)
            first += parameter.numel()
        return made

    def _residual(self, place: Place) -> torch.Tensor:
        values = place.bucket.open(self._codec())
        return values[place.first : place.first + place.parameter.numel()]


def make(error_feedback: Any, memory: Any) -> ErrorFeedback | None:
    """Of the arguments of CGXState."""
    if not isinstance(error_feedback, bool):
        raise TypeError(f"error_feedback={error_feedback!r}; allowed: True, False")
    if not isinstance(memory, str):
        allowed = ", ".join(map(repr, MEMORIES))
        raise TypeError(f"error_feedback_memory={memory!r}; allowed: {allowed}")
    feedback = ErrorFeedback(memory)  # also checks the argument where it has no effect
    return feedback if error_feedback else None


def _copies(residuals: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in residuals.items()}


def _check_names(residuals: Mapping[str, torch.Tensor], numels: Mapping[str, int]) -> None:
    """ValueError for a residual that no parameter of the model has, or not of this size."""
    for name, saved in residuals.items():
        if name not in numels:
            known = ", ".join(list(numels)[:3])
            raise ValueError(
                f"load_state_dict of a CGXState: error_feedback has a residual for {name!r}; "
                f"the model has {len(numels)} parameters: {known}, ..."
            )
        if saved.numel() != numels[name]:
            raise ValueError(
                f"load_state_dict of a CGXState: the residual of {name!r} has the shape "
                f"{tuple(saved.shape)}; allowed: the parameter's {numels[name]} values"
            )
