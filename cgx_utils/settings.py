"""Checks the settings that a script gives: `min_size`, `config` and keywords."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from torch_cgx import _config


def check_min_size(min_size: Any) -> None:
    """TypeError, ValueError."""
    if isinstance(min_size, bool) or not isinstance(min_size, int):
        raise TypeError(f"min_size={min_size!r}; allowed: integers >= 0")
    if min_size < 0:
        raise ValueError(f"min_size={min_size}; allowed: integers >= 0")


def settings_of(
    config: Any, settings: Mapping[str, Any], names: Sequence[str] = ()
) -> dict[str, Any]:
    """The settings of the argument `config` and of keywords, checked; a keyword that is None counts
    as absent, as in `Options`. names: of the other arguments. TypeError, ValueError.
    """
    keys = ", ".join(_config.KEYS)
    if config is not None and not isinstance(config, Mapping):
        raise TypeError(f"config={config!r}; allowed: a dict of {keys}, None")
    given = dict(config or {})
    for key in settings:
        if key not in _config.KEYS:
            near = difflib.get_close_matches(key, [*names, *_config.KEYS], 1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise TypeError(
                f"CGXState got an unexpected argument {key!r}{hint}; allowed: {', '.join(names)}, "
                f"and the settings {keys}"
            )
        if key in given and settings[key] is not None:
            raise TypeError(f"CGXState got {key}= and a config that has {key!r}; allowed: one")
    named = {key: value for key, value in settings.items() if value is not None}
    return _config.check_dict(given | named, "config")
