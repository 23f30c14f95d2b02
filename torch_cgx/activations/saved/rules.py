"""What `compress_saved` does to a tensor, by the module that saves it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torch_cgx import codecs
from torch_cgx.activations.saved.codings import Coding, coding_of, merged

Config = Mapping[str, Any] | codecs.Codec | str
Filter = Callable[[str, torch.Tensor], bool]


class Rules:
    """Settings that are checked as a whole before anything is changed. ValueError, TypeError: what
    is not allowed.
    """

    def __init__(
        self,
        config: Config,
        min_size: int,
        filter: Filter | None,
        overrides: Mapping[str, Config | None] | None,
    ):
        self.coding = coding_of(config)
        if isinstance(min_size, bool) or not isinstance(min_size, int) or min_size < 0:
            raise ValueError(f"min_size={min_size!r}; allowed: integers from 0")
        if filter is not None and not callable(filter):
            raise TypeError(
                f"filter is of type {type(filter).__name__}; allowed: a function of a module's "
                "name and a tensor, None"
            )
        self.min_size, self.filter = min_size, filter
        self.overrides: list[tuple[re.Pattern[str], Coding | None]] = []
        if not isinstance(overrides, (Mapping, type(None))):
            raise TypeError(
                f"overrides is of type {type(overrides).__name__}; allowed: a dict of regular "
                "expressions and configs, None"
            )
        for pattern, other in (overrides or {}).items():
            where = f"overrides[{pattern!r}]"
            try:
                compiled = re.compile(pattern)
            except (re.error, TypeError) as error:
                raise ValueError(f"{where}: not a regular expression: {error}") from None
            if isinstance(other, Mapping):
                other = merged(config, other)
            self.overrides.append((compiled, None if other is None else coding_of(other, where)))

    @property
    def by_name(self) -> bool:
        return bool(self.overrides) or self.filter is not None

    @property
    def stochastic(self) -> bool:
        codings = [self.coding, *(coding for _, coding in self.overrides)]
        return any(coding is not None and coding.stochastic for coding in codings)

    def check_names(self, names: list[str]) -> None:
        """ValueError for a pattern that matches none of a model's modules."""
        for pattern, _ in self.overrides:
            if not any(pattern.search(name) for name in names):
                raise ValueError(
                    f"overrides[{pattern.pattern!r}] matches no module; the model has: "
                    f"{', '.join(name for name in names[:12] if name)}"
                    f"{', ...' if len(names) > 13 else ''}"
                )

    def coding_for(self, name: str) -> Coding | None:
        for pattern, coding in self.overrides:
            if pattern.search(name):
                return coding
        return self.coding
