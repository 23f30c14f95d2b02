"""The plans of the buckets of one `CGXState`: which codec each layer gets, cached."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from cgx_utils.choosing import Chooser
from cgx_utils.decisions import Decisions
from cgx_utils.names import Names, missing
from cgx_utils.summary import Decision
from cgx_utils.value_numbers import ValueNumbers
from torch_cgx._policy.names import Named
from torch_cgx._policy.rules import Policy

if TYPE_CHECKING:
    from torch_cgx._C import Codec, ProcessGroupCGX

Plan = list[tuple[int, "Codec | None"]]

PURPOSE = "its layer_filter, overrides or adaptive"
MOST_LAYOUTS = 1024  # a model has tens of buckets, and rebuilds them once

Content = tuple[tuple[int, int], ...]  # of a bucket: id and number of values of its parameters


def content_of(parameters: list[torch.Tensor]) -> Content:
    return tuple((id(parameter), parameter.numel()) for parameter in parameters)


class BucketPlan(NamedTuple):
    """layers: in the bucket's order, (number of values, codec or None for exact). firsts: for each
    layer, the number of its first value among the values of the model.
    """

    layers: Plan
    firsts: list[int]


class Plans:
    """Plans by the content of a bucket and the serial number of a group. Not thread-safe.

    decided: the decision for each parameter, by its id. numbers: of the values of the model.
    RuntimeError if a rule needs names and a parameter has none.
    """

    def __init__(self, policy: Policy, chooser: Chooser):
        self._policy, self._chooser = policy, chooser
        self.decided: dict[int, Decision] = {}
        self.numbers = ValueNumbers()
        self._plans: dict[tuple[Content, int], BucketPlan] = {}
        self._checked_patterns = False

    def clear(self) -> None:
        """Makes all plans anew at their next use: the decisions may have changed."""
        self._plans.clear()

    def forget(self) -> None:
        """Forgets a model that is gone, or has another layout."""
        self.clear()
        self.decided.clear()
        self.numbers.forget()

    def known(self, parameters: list[torch.Tensor], backend: ProcessGroupCGX) -> BucketPlan:
        """The plan that `get` has returned for this bucket."""
        return self._plans[content_of(parameters), backend.serial]

    def get(
        self,
        parameters: list[torch.Tensor],
        backend: ProcessGroupCGX,
        names: Names,
        decisions: Decisions | None,
    ) -> BucketPlan:
        """The plan of a bucket. decisions: of `adaptive`."""
        key = (content_of(parameters), backend.serial)
        if key not in self._plans:
            if len(self._plans) >= MOST_LAYOUTS:  # groups come and go
                self._plans.clear()
            self._plans[key] = self._build(parameters, backend, names, decisions)
        return self._plans[key]

    def keep_exact(self, parameters: list[torch.Tensor], why: str) -> None:
        """Records parameters that are reduced without a plan."""
        for parameter in parameters:
            if id(parameter) not in self.decided:
                numel, dtype = parameter.numel(), parameter.dtype
                self.decided[id(parameter)] = Decision(numel, dtype, None, why)

    def _build(
        self,
        parameters: list[torch.Tensor],
        backend: ProcessGroupCGX,
        names: Names,
        decisions: Decisions | None,
    ) -> BucketPlan:
        if decisions is not None:
            decisions.fit(names)
        needs_names = self._policy.needs_names or decisions is not None
        named = self._all_named(names) if needs_names else None
        plan = BucketPlan([], [])
        for parameter in parameters:
            name: Named | None = None
            if named is not None:
                if id(parameter) not in named:
                    shape = tuple(parameter.shape)
                    raise missing(PURPOSE, f"a parameter of shape {shape} is not in them")
                name = named[id(parameter)]
            decision = self._chooser.choose(name, parameter, backend)
            self.decided[id(parameter)] = decision
            codec, layers = decision.codec, plan.layers
            if codec is None and layers and layers[-1][1] is None:
                layers[-1] = (layers[-1][0] + parameter.numel(), None)
            else:
                layers.append((parameter.numel(), codec))
                plan.firsts.append(self.numbers.first_of(parameter, names))
        return plan

    def _all_named(self, names: Names) -> dict[int, Named]:
        """By id of the parameter. The ids stay valid: the model or the given list keeps the
        parameters.
        """
        named = names.needed(PURPOSE)
        if not self._checked_patterns:
            self._checked_patterns = True
            self._policy.warn_of_unused(named)
        return {id(one.parameter): one for one in named}
