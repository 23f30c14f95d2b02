"""Default values of the keys that a `CGXState` leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch_cgx import _config

if TYPE_CHECKING:
    from torch_cgx._C import ProcessGroupCGX

BITS = 4  # registering the hook means that gradients should be compressed


class Defaults:
    """Values from the group's options, else from the environment as it was when the state was
    created, else built-in. The built-in values are the backend's, except for the number of bits: 4,
    or 16 with the codecs bf16 and fp16.
    """

    def __init__(self) -> None:
        self._environment = {
            key: value
            for key in _config.KEYS
            if (value := _config.from_environment(key)) is not None
        }

    def values(self, given: Mapping[str, Any], backend: ProcessGroupCGX | None) -> dict[str, Any]:
        """All keys of a layer's configuration; `given`: the keys that the state sets. backend:
        None for the values that hold as long as there is no group.
        """
        found = {
            **(_config.defaults() if backend is None else backend.settings()),
            **self._environment,
            **({} if backend is None else backend.options.given()),
            **given,
        }
        if "bits" not in given and not self.origin("bits", backend):
            found["bits"] = _config.HALF_BITS if found["codec"] in _config.HALVES else BITS
        return {key: found[key] for key in _config.KEYS}

    def shown(self, given: Mapping[str, Any], start: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that hold as long as there is no group, for a repr. given: the keys that the
        state sets; start: keys that hold at first, in place of these.
        """
        values = self.values({**given, **start}, None)
        codec = _config.codec_of({}, values)
        found = {"bits": values["bits"]}
        if codec is not None:
            own = codec.parameters
            found = {key: own[key] for key in ("bits", "bucket_size") if key in own}
            found["codec"] = codec.codec
            more = {k: v for k, v in given.items() if k in own or k == "half"}
            found |= {key: value for key, value in more.items() if key not in found}
        return found

    def origin(self, key: str, backend: ProcessGroupCGX | None) -> str:
        """The source of a key's value if the state does not set it; empty: built in."""
        if backend is not None and key in backend.options.given():
            return "the group's Options"
        if key in self._environment or _config.from_environment(key) is not None:
            return _config.variable_of(key)
        return ""
