"""Decides which parameters are compressed, and how. No communication."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Union

import torch

from torch_cgx import _config
from torch_cgx._policy.names import Named, mentions_wrapper
from torch_cgx._warnings import warn

Filter = Union[Callable[[str, torch.nn.Parameter], bool], str, "re.Pattern[str]"]


class Policy:
    """The rules of one `CGXState`. Those that go by name hold for a parameter if they do for any of
    its names. In their order:

    1. the first override whose regex is found in the parameter's name. With "bits" it decides alone
       (above 8, but not 16: exact), whatever the size; without "bits", its other keys apply if the
       rules below compress the parameter;
    2. size: parameters with fewer than `min_size` values are exact;
    3. the filter, if there is one: parameters that it does not select are exact. It replaces
       rule 4, so it can also select a vector;
    4. without a filter: parameters with fewer than two dimensions (biases, norms) are exact.
    """

    def __init__(
        self,
        min_size: int,
        params: Mapping[str, Any],
        layer_filter: Any = None,
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
    ):
        self.min_size = min_size
        self.params = dict(params)
        self._callable, self._patterns = _parse_filter(layer_filter)
        self._overrides = _parse_overrides(overrides)

    @property
    def needs_names(self) -> bool:
        return self._callable is not None or bool(self._patterns) or bool(self._overrides)

    def config_of(self, name: Named | str | None, parameter: torch.Tensor) -> dict[str, Any] | None:
        """The keys set for this parameter, {} if only defaults apply, None for exact. `name` may be
        None unless `needs_names`.
        """
        return self.decide(name, parameter)[0]

    def decide(
        self, name: Named | str | None, parameter: torch.Tensor
    ) -> tuple[dict[str, Any] | None, str]:
        """`config_of`, and the reason: the rule that keeps an exact parameter exact, or the
        argument that sets the bits of a compressed one (empty: no argument does).
        """
        override = self._override(name) if name is not None else {}
        if "bits" in override:
            return {**self.params, **override}, "overrides"
        if parameter.numel() < self.min_size:
            return None, f"min_size={self.min_size} (fewer values)"
        if not self._chosen(name, parameter):
            filtered = self._callable is not None or bool(self._patterns)
            return None, "layer_filter" if filtered else "fewer than two dimensions"
        return {**self.params, **override}, "config" if "bits" in self.params else ""

    def describe_rules(self) -> str:
        """ ", layer_filter=..., overrides=...", without absent ones."""
        text = ""
        if self._callable is not None:
            text += f", layer_filter={getattr(self._callable, '__qualname__', self._callable)}"
        if self._patterns:
            text += f", layer_filter={[pattern.pattern for pattern in self._patterns]}"
        if self._overrides:
            found = {pattern.pattern: params for pattern, params in self._overrides.items()}
            text += f", overrides={found}"
        return text

    def warn_of_unused(self, named: Iterable[Named], where: str = "CGXState") -> None:
        """Warns of each regex that matches none of the model's parameter names, and of a callable
        that selects none of its parameters, most likely a typing error. where: who was given them.
        """
        known = list(named)
        model = f"of the model's {len(known)} parameters"
        shown = f"{', '.join(one.name for one in known[:3])}, ..."
        for pattern in [*self._patterns, *self._overrides]:
            if not any(_matches(pattern, one) for one in known):
                warn(f"{where}: the pattern {pattern.pattern!r} matches none {model}: {shown}")
        if self._callable is not None and not any(self._chosen(o, o.parameter) for o in known):
            name = getattr(self._callable, "__qualname__", self._callable)
            warn(f"{where}: layer_filter={name} selects none {model}: {shown}")

    def _override(self, name: Named | str) -> dict[str, Any]:
        for pattern, params in self._overrides.items():
            if _matches(pattern, name):
                return params
        return {}

    def _chosen(self, name: Named | str | None, parameter: torch.Tensor) -> bool:
        if self._callable is not None:
            names = name.names if isinstance(name, Named) else (name,)
            return any(self._callable(one, parameter) for one in names)
        if self._patterns:
            return any(_matches(pattern, name or "") for pattern in self._patterns)
        return parameter.dim() > 1


def _matches(pattern: re.Pattern[str], name: Named | str) -> bool:
    if isinstance(name, str):
        return bool(pattern.search(name))
    names = name.names
    if mentions_wrapper(pattern.pattern):
        names += name.wrapped
    return any(pattern.search(one) for one in names)


def _compile(pattern: Any, what: str) -> re.Pattern[str]:
    if not isinstance(pattern, (str, re.Pattern)):
        raise TypeError(f"{what} holds {pattern!r}, a {type(pattern).__name__}; allowed: regexes")
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{what}: {pattern!r} is not a regular expression: {error}") from None


def _parse_filter(layer_filter: Any) -> tuple[Callable[..., bool] | None, list[re.Pattern[str]]]:
    if layer_filter is None:
        return None, []
    if callable(layer_filter):
        return layer_filter, []
    if isinstance(layer_filter, (str, re.Pattern)):
        return None, [_compile(layer_filter, "layer_filter")]
    if isinstance(layer_filter, (list, tuple)) and layer_filter:
        return None, [_compile(pattern, "layer_filter") for pattern in layer_filter]
    raise TypeError(
        f"layer_filter={layer_filter!r}; allowed: a callable (name, parameter) -> bool, a regex, "
        "a list of at least one regex, None"
    )


def _parse_overrides(overrides: Any) -> dict[re.Pattern[str], dict[str, Any]]:
    if overrides is None:
        return {}
    if not isinstance(overrides, Mapping):
        raise TypeError(f"overrides={overrides!r}; allowed: a dict of regex: dict, None")
    parsed = {}
    for pattern, params in overrides.items():
        where = f"overrides[{pattern!r}]"
        if not isinstance(params, Mapping):
            raise TypeError(f"{where}={params!r}; allowed: a dict of {', '.join(_config.KEYS)}")
        parsed[_compile(pattern, "overrides")] = _config.check_dict(params, where)
    return parsed
