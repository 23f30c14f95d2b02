"""Which codec a parameter gets: by the rules of a state, the settings that they leave open, and the
decisions of `adaptive`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from cgx_utils import error_feedback as feedback
from cgx_utils.decisions import Decisions, Layer
from cgx_utils.defaults import Defaults
from cgx_utils.schedule import Schedule
from cgx_utils.summary import Decision
from torch_cgx import _config
from torch_cgx._policy.names import Named
from torch_cgx._policy.rules import Policy

if TYPE_CHECKING:
    from torch_cgx._C import Codec, ProcessGroupCGX


class Chooser:
    """Decides for one `CGXState`, and adds the layers whose bits `adaptive` decides to `decisions`.

    error_feedback: only codecs that work with residuals are allowed. aps: only codecs of formats
    with a range are allowed.
    """

    def __init__(
        self,
        policy: Policy,
        defaults: Defaults,
        decisions: Decisions | None,
        error_feedback: bool,
        schedule: Schedule | None,
        aps: bool = False,
    ):
        self._policy = policy
        self._defaults = defaults
        self._decisions = decisions
        self._error_feedback = error_feedback
        self._schedule = schedule
        self._aps = aps
        self._checked: list[dict[str, Any]] = []  # configurations that have all of its bits
        self.step = 0  # for which the schedule's bits hold

    def choose(
        self, name: Named | None, parameter: torch.Tensor, backend: ProcessGroupCGX
    ) -> Decision:
        """Its codec, or why it is exact. name: None where no rule needs it."""
        numel, dtype = parameter.numel(), parameter.dtype
        config, why = self._policy.decide(name, parameter)
        if config is None:
            return Decision(numel, dtype, None, why)
        local = backend.settings()["intra_compress"] is False and len(set(backend.hosts())) == 1
        decides = self._decisions is not None and why != "overrides" and not local
        if self._decisions is not None and decides:
            assert name is not None
            config = {**config, "bits": self._decisions.bits_of(name.name)}
            candidates = self._candidates(name.name, self._defaults.values(config, backend))
            self._decisions.layers[id(parameter)] = Layer(name.name, numel, dtype, candidates)
        if self._schedule is not None and why != "overrides":
            self._check_entries(config, backend)
            config, why = {**config, "bits": self._schedule.bits(self.step)}, "schedule"
        full = self._defaults.values(config, backend)
        # Values that mean exact have already caused a warning where they were given.
        codec = self._codec(full)
        if codec is None:
            origin = why or self._defaults.origin("bits", backend)
            return Decision(numel, dtype, None, f"bits={full['bits']} in {origin}")
        if local:
            return Decision(numel, dtype, None, "intra_compress=0, which keeps one host exact")
        return Decision(numel, dtype, codec)

    def _codec(self, full: dict[str, Any]) -> Codec | None:
        """Of a whole configuration; None for exact values. ValueError if a layer cannot have it."""
        codec = None if _config.is_exact(full["bits"]) else _config.codec_of(full, full)
        if codec is not None and self._error_feedback:
            feedback.check_codec(codec)
        if codec is not None and self._aps:
            from torch_cgx import _aps  # loads the engine

            _aps.top_of(codec)
        return codec

    def _check_entries(self, config: Mapping[str, Any], backend: ProcessGroupCGX) -> None:
        """ValueError, before its step comes, for an entry of the schedule that a layer with this
        configuration cannot have.
        """
        assert self._schedule is not None
        if config in self._checked:
            return
        for first, bits in self._schedule.entries.items():
            full = self._defaults.values({**config, "bits": bits}, backend)
            try:
                self._codec(full)
            except ValueError as error:
                raise ValueError(f"schedule[{first}]: {error}") from None
        self._checked.append(dict(config))

    def _check_candidate(self, codec: Codec, name: str) -> None:
        try:
            feedback.check_codec(codec)
        except ValueError as error:
            assert self._decisions is not None
            rest = tuple(b for b in self._decisions.parameters.candidates if b != codec.bits)
            raise ValueError(
                f"adaptive: candidates has {codec.bits}, for {name!r}: {error}; or candidates="
                f"{rest}"
            ) from None

    def _candidates(self, name: str, full: dict[str, Any]) -> tuple[Codec, ...]:
        """The codecs of a layer with each number of bits that `adaptive` may choose."""
        assert self._decisions is not None
        codecs = []
        for bits in self._decisions.parameters.candidates:
            values = {**full, "bits": bits}
            try:
                codec = _config.codec_of(values, values)
            except ValueError as error:
                raise ValueError(
                    f"adaptive: candidates has {bits}, for {name!r}: {error}"
                ) from None
            assert codec is not None
            if self._error_feedback:
                self._check_candidate(codec, name)
            codecs.append(codec)
        return tuple(codecs)
