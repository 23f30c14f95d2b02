"""The state of `cgx_hook`: the policy of one DistributedDataParallel instance, and its plans."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from cgx_utils.defaults import Defaults
from cgx_utils.owner import find_owner
from cgx_utils.policy import Policy
from cgx_utils.summary import Choice, Summary
from torch_cgx import _config
from torch_cgx._warnings import warn

if TYPE_CHECKING:
    from torch_cgx._C import Codec, ProcessGroupCGX

Plan = list[tuple[int, "Codec | None"]]

_MOST_LAYOUTS = 1024  # a model has tens of buckets, and rebuilds them once


class CGXState:
    """Rules by which `cgx_hook` compresses gradients. One per DistributedDataParallel instance.

    A gradient is compressed if its parameter has more than one dimension and at least
    max(layer_min_size, CGX_COMPRESSION_MINIMAL_SIZE) values; biases, norms and small layers are
    exact.

    process_group: the group to reduce over (backend "cgx"); None: the group of the DDP
        instance.
    layer_min_size: in values.
    compression_params: a dict of "bits" (1-8; 16: bf16 or fp16, as "half" says; 32: exact; other
        numbers above 8 are exact too, with a warning), "bucket_size" (values) and, if needed,
        "codec", "rounding", "seed", "skip_incomplete_buckets". Keys that it leaves open come from
        the group's `torch_cgx.Options`, else from CGX_COMPRESSION_QUANTIZATION_BITS,
        CGX_COMPRESSION_BUCKET_SIZE, ... as they are when the state is created, else: bits 4,
        bucket_size 512.
    layer_filter: a callable (name, parameter) -> bool, a regex or a list of regexes, searched for
        in the parameter's name. Only parameters that it selects are compressed. It replaces the
        rule about dimensions, not the rule about sizes.
    overrides: {regex: params}, the first match counts. With "bits" it overrides the rules above,
        sizes included; without, it changes how a compressed layer is compressed.
    named_parameters: `model.named_parameters()` or the model, for the names; by default the names
        in the DDP instance, without the leading "module.".

    After the first step, rank 0 of the group writes a line on stderr that says what is compressed
    (unless the group's option `log` is off), or warns that nothing is compressed, with the reason.

    ValueError and TypeError name a bad key or value. Pickling drops the process group, plans and
    names; a restored state uses the DDP instance that it is registered with. Not thread-safe (DDP
    runs one hook at a time).
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        layer_min_size: int = 1024,
        compression_params: Mapping[str, Any] | None = None,
        *,
        layer_filter: Any = None,
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        named_parameters: torch.nn.Module | Iterable[tuple[str, torch.Tensor]] | None = None,
    ):
        if isinstance(layer_min_size, bool) or not isinstance(layer_min_size, int):
            raise TypeError(f"layer_min_size={layer_min_size!r}; allowed: integers >= 0")
        if layer_min_size < 0:
            raise ValueError(f"layer_min_size={layer_min_size}; allowed: integers >= 0")
        if compression_params is not None and not isinstance(compression_params, Mapping):
            raise TypeError(
                f"compression_params={compression_params!r}; allowed: a dict of "
                f"{', '.join(_config.KEYS)}, None"
            )
        if process_group is not None:
            _check_group(process_group)
        params = _config.check_dict(compression_params or {}, "compression_params")
        self.process_group = process_group
        self._policy = Policy(
            max(layer_min_size, _config.minimal_size()), params, layer_filter, overrides
        )
        self._defaults = Defaults()
        self._names = None if named_parameters is None else _names_of(named_parameters)
        self._layouts: dict[Any, list[torch.Tensor]] = {}
        self._plans: dict[Any, Plan] = {}
        self._choices: dict[int, Choice] = {}  # of parameters, by id, in the first step
        self._summary: Summary | None = None
        self._owner: weakref.ref[DistributedDataParallel] | None = None
        self._holders = 0
        self._checked_patterns = False

    @property
    def layer_min_size(self) -> int:
        """Smallest number of values that is compressed, CGX_COMPRESSION_MINIMAL_SIZE included."""
        return self._policy.min_size

    @property
    def compression_params(self) -> dict[str, Any]:
        """A copy of what was given."""
        return dict(self._policy.params)

    def __repr__(self) -> str:
        """Shows the defaults that hold without a group, as long as there is none."""
        from torch_cgx import _C

        values = self._defaults.values(self._policy.params, None)
        codec = _config.codec_of(values, values)
        shown = {"bits": values["bits"]}
        if codec is not None:
            own = codec.parameters
            shown = {key: own[key] for key in ("bits", "bucket_size") if key in own}
            shown["codec"] = codec.codec
        shown |= {key: value for key, value in self._policy.params.items() if key not in shown}
        shown["layer_min_size"] = self.layer_min_size
        text = ", ".join(f"{key}={value!r}" for key, value in shown.items())
        rules = f"{text}{self._policy.describe_rules()}"
        found = "" if self._summary is None else f"{self._summary}; "
        return f"CGXState({rules}; {found}torch_cgx {_C.__version__}, {_C.cpu_level()})"

    def group_of(self, parameters: list[torch.Tensor]) -> dist.ProcessGroup:
        """The process group to reduce the bucket of these parameters over."""
        key = _content(parameters)
        # Signs of a second DDP instance: a new layout, the end of the first instance or, if both
        # have the same parameters, another reference to this state. Searching for it is slow.
        gone = self._owner is not None and self._owner() is None
        if key not in self._layouts or gone or sys.getrefcount(self) > self._holders:
            if len(self._layouts) >= _MOST_LAYOUTS or gone:
                self._layouts.clear()
                self._plans.clear()
            if gone:
                self._owner = None
            self._find_owner(parameters)
            self._holders = max(self._holders, sys.getrefcount(self))
            # Kept alive, so that no other object gets one of these ids.
            self._layouts[key] = parameters
        if self.process_group is not None:
            return self.process_group
        owner = self._known_owner()
        if owner is not None:
            return owner.process_group
        return dist.distributed_c10d._get_default_group()

    def plan(self, parameters: list[torch.Tensor], backend: ProcessGroupCGX) -> Plan:
        """The layers of a bucket, in its order: (number of values, codec or None for exact). Cached
        by content; after `group_of` of the same bucket.

        backend: its options apply to keys that the state leaves open; the environment to keys that
        both leave open.
        """
        key = (_content(parameters), backend.serial)
        if key not in self._plans:
            self._plans[key] = self._build(parameters, backend)
        return self._plans[key]

    def keep_exact(self, parameters: list[torch.Tensor], why: str) -> None:
        """Records for the summary that the hook reduced these parameters without a plan."""
        if self._summary is None:
            for parameter in parameters:
                numel, dtype = parameter.numel(), parameter.dtype
                self._choices[id(parameter)] = Choice(numel, dtype, None, why)

    def end_step(self, backend: ProcessGroupCGX) -> None:
        """Called after the last bucket of a step; the first call reports what is compressed."""
        if self._summary is not None:
            return
        self._summary = Summary(self._choices.values(), backend.stats()["carrier"])
        self._choices = {}
        if backend.rank() != 0:
            return
        if not self._summary.compresses:
            warn(f"cgx: {self._summary}")
        elif backend.settings()["log"] != "off":
            # One write: a worker of the group may log at the same time.
            sys.stderr.write(f"cgx: {self._summary}\n")
            sys.stderr.flush()

    def _build(self, parameters: list[torch.Tensor], backend: ProcessGroupCGX) -> Plan:
        names = self._all_names() if self._policy.needs_names else None
        layers: Plan = []
        for parameter in parameters:
            name = None
            if names is not None:
                if id(parameter) not in names:
                    raise _no_names(f"a parameter of shape {tuple(parameter.shape)} is not in them")
                name = names[id(parameter)]
            choice = self._choose(name, parameter, backend)
            if self._summary is None:
                self._choices[id(parameter)] = choice
            codec = choice.codec
            if codec is None and layers and layers[-1][1] is None:
                layers[-1] = (layers[-1][0] + parameter.numel(), None)
            else:
                layers.append((parameter.numel(), codec))
        return layers

    def _choose(
        self, name: str | None, parameter: torch.Tensor, backend: ProcessGroupCGX
    ) -> Choice:
        numel, dtype = parameter.numel(), parameter.dtype
        config, why = self._policy.decide(name, parameter)
        if config is None:
            return Choice(numel, dtype, None, why)
        full = self._defaults.values(config, backend)
        # Values that mean exact have already caused a warning where they were given.
        exact = _config.is_exact(full["bits"])
        codec = None if exact else _config.codec_of(full, full)
        if codec is None:
            origin = why or self._defaults.origin("bits", backend)
            return Choice(numel, dtype, None, f"bits={full['bits']} in {origin}")
        if backend.settings()["intra_compress"] is False and len(set(backend.hosts())) == 1:
            return Choice(numel, dtype, None, "intra_compress=0, which keeps one host exact")
        return Choice(numel, dtype, codec)

    def _all_names(self) -> dict[int, str]:
        """Parameter id -> name. The ids stay valid: the model or the given list keeps the
        parameters.
        """
        if self._names is None:
            owner = self._known_owner()
            if owner is None:
                raise _no_names("the DistributedDataParallel instance was not found")
            pairs = {id(p): n for n, p in owner.module.named_parameters(remove_duplicate=False)}
        else:
            pairs = {id(p): n for n, p in self._names}
        if not self._checked_patterns:
            self._checked_patterns = True
            self._policy.warn_of_unused(pairs.values())
        return pairs

    def _known_owner(self) -> DistributedDataParallel | None:
        return None if self._owner is None else self._owner()

    def _find_owner(self, parameters: list[torch.Tensor]) -> DistributedDataParallel | None:
        owner = find_owner(self, parameters)
        previous = self._known_owner()
        if owner is not None and previous is not None and owner is not previous:
            raise RuntimeError(
                "this CGXState was used by another DistributedDataParallel instance before, "
                "which is still in use; make a CGXState for each"
            )
        if owner is not None:
            self._owner = weakref.ref(owner)
        return owner

    def __getstate__(self) -> dict[str, Any]:
        dropped = {"process_group", "_layouts", "_plans", "_owner", "_names"}
        dropped |= {"_choices", "_summary"}
        return {key: value for key, value in self.__dict__.items() if key not in dropped}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, process_group=None, _names=None, _owner=None)
        self.__dict__.update(_layouts={}, _plans={}, _holders=0, _checked_patterns=False)
        self.__dict__.update(_choices={}, _summary=None)


def _check_group(group: Any) -> None:
    from torch_cgx._backend import check_group  # loads the engine

    check_group(group, "process_group")


def _content(parameters: list[torch.Tensor]) -> tuple[tuple[int, int], ...]:
    return tuple((id(parameter), parameter.numel()) for parameter in parameters)


def _names_of(source: Any) -> list[tuple[str, torch.Tensor]]:
    if isinstance(source, DistributedDataParallel):
        source = source.module
    if isinstance(source, torch.nn.Module):
        source = source.named_parameters(remove_duplicate=False)
    pairs = _config.list_of("named_parameters", source, "a module, (name, parameter) pairs, None")
    for pair in pairs:
        ok = isinstance(pair, tuple) and len(pair) == 2
        if not (ok and isinstance(pair[0], str) and isinstance(pair[1], torch.Tensor)):
            raise TypeError(
                f"named_parameters holds {type(pair).__name__}; allowed: a module, or "
                "(name, parameter) pairs as model.named_parameters() gives"
            )
    return pairs


def _no_names(why: str) -> RuntimeError:
    return RuntimeError(
        f"CGXState needs the parameters' names for its layer_filter or overrides, and {why}; "
        "pass named_parameters=model.named_parameters()"
    )
