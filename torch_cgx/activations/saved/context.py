"""`compress_saved`: what nodes save for the backward pass is kept in few bits."""

from __future__ import annotations

import functools
import re
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch
from torch import nn

from torch_cgx import codecs
from torch_cgx.activations.saved import integers, masks
from torch_cgx.activations.saved.codings import DEFAULT, Coding, coding_of, merged
from torch_cgx.activations.saved.ledger import Ledger
from torch_cgx.activations.saved.modules import Names, has_storage, is_running, running
from torch_cgx.activations.saved.sources import Decode, Handle, Kept, Packed, Part, Source
from torch_cgx.activations.saved.views import Region, region_of
from torch_cgx.activations.saved.weights import is_cast_of, is_weight

Config = Mapping[str, Any] | codecs.Codec | str
Filter = Callable[[str, torch.Tensor], bool]
_FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_MOST_STEP = 2**63 - 1
_ROW = 16  # values of the shortest rows that have a statistic each


class Rules:
    """What is done to a tensor, by the name of the module that saves it. Checked as a whole before
    anything is changed.
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


class compress_saved:
    """Within it, tensors that autograd saves for the backward pass are kept in few bits::

        with activations.compress_saved({"codec": "maxmin", "bits": 4}):
            output = model(batch)
        loss_function(output, targets).backward()  # what the loss saves stays exact

    config: a dict of "codec" and its parameters, a codec of `torch_cgx.codecs`, or a name. Beside
        the wire codecs there are "half" (16 bits) and "bounded", which takes one bound: max_error,
        relative or pointwise. Default: maxmin, 4 bits, buckets of 256 values. Rounding of maxmin is
        stochastic by default at up to 4 bits.
    min_size: tensors of fewer values are kept as they are.
    filter: filter(name of the module, tensor) says whether a tensor may be compressed.
    overrides: {regular expression: config}, for modules whose name it finds (`re.search`): keys of
        `config` that are other there, or None, which keeps their tensors as they are. The first
        that fits counts.
    model: whose modules have these names. Without it, the outermost module that runs is the model.
    step: number of the training step, 0 to 2^63 - 1, which stochastic rounding is keyed by, with
        the number of the tensor in the context, the rank and the element. None: a number that
        each entry draws from torch's default generator, as a dropout does, so that
        `torch.manual_seed`, a restored generator state and activation checkpointing repeat it.
    measure: also decodes each tensor at once, for `errors`. It takes time.

    Kept as they are: parameters, buffers, leaves that require a gradient, their views, and casts
    of them that autocast makes; complex tensors, tensors of other layouts, and of subclasses
    such as DTensor; and statistics such as the scales of norms and the sums of softmax: tensors
    with a last dimension of 1, or without a history, that have at most a sixteenth of the values
    of the largest tensor so far. Integers, bools and floating tensors of two values (masks of
    dropout) are packed to the bits that they need, without loss. Nodes that save the same storage
    in one entry with equal settings share a payload. Views come back with their strides.

    An object may be entered again and again, also nested and by several threads. It enters torch's
    `saved_tensors_hooks`: of nested contexts the innermost counts, checkpointing's included. It
    works around a compiled function, not inside one.

    Errors: ValueError, TypeError for arguments that are not allowed; ValueError where an entry of
    `overrides` matches no module, when the context ends, or at once with `model`. RuntimeError for
    `overrides` or `filter` around a compiled function, whose tensors belong to no single module.
    TypeError from the forward pass for a tensor that the codec does not take (float64, except by
    "bounded"). RuntimeError from the backward pass where a tensor was changed in place after it
    was saved.

    The idea is that of ActNN (Chen et al., ICML 2021); with "bounded" that of AC-GC (Evans and
    Aamodt, NeurIPS 2021).
    """

    def __init__(
        self,
        config: Config = DEFAULT,
        min_size: int = 1024,
        filter: Filter | None = None,
        overrides: Mapping[str, Config | None] | None = None,
        *,
        model: nn.Module | None = None,
        step: int | None = None,
        measure: bool = False,
    ):
        _refuse_tracing()
        self._arguments = (config, min_size, filter, overrides)
        self._rules = Rules(config, min_size, filter, overrides)
        self._names: weakref.WeakKeyDictionary[nn.Module, Names] = weakref.WeakKeyDictionary()
        self._model: weakref.ref[nn.Module] | None = None
        if model is not None:
            if not isinstance(model, nn.Module):
                raise TypeError(
                    f"model is of type {type(model).__name__}; allowed: a torch.nn.Module"
                )
            self._rules.check_names(self._names_of(model).all())
            self._model = weakref.ref(model)
        if step is not None:
            if isinstance(step, bool) or not isinstance(step, int):
                raise TypeError(f"step={step!r}; allowed: integers of 0 to 2**63 - 1, None")
            if not 0 <= step <= _MOST_STEP:
                raise ValueError(f"step={step}; allowed: integers of 0 to 2**63 - 1, None")
        self._step = step
        self.measure = measure
        self._ledger = Ledger()
        self._lock = threading.RLock()
        self._entered = threading.local()

    # ---- what it says

    @property
    def errors(self) -> dict[str, float]:
        """By name of the module: the greatest relative L2 error of a tensor that it saved in the
        last entry, with measure=True.
        """
        return dict(self._ledger.errors)

    @property
    def bytes_saved(self) -> int:
        """Bytes of the storages that nodes have saved in the last entry, without those that are
        kept as they are.
        """
        return self._ledger.bytes_saved

    @property
    def bytes_kept(self) -> int:
        """Bytes of the payloads that are kept in place of `bytes_saved`."""
        return self._ledger.bytes_kept

    def __repr__(self) -> str:
        rules = self._rules
        return f"compress_saved({rules.coding.name}, min_size={rules.min_size})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Without what it has seen, and without `model`, which is whoever pickles or copies it."""
        return _made_again, (self._arguments, self._step, self.measure)

    # ---- entering and leaving

    def __enter__(self) -> compress_saved:
        _refuse_tracing()
        self._ledger.begin()
        run = _Run(self, self._key())
        pack, unpack = run.pack, _unpack
        if "torch._dynamo" in sys.modules:  # it would compile the hooks, too
            pack, unpack = torch.compiler.disable(pack), torch.compiler.disable(unpack)
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, unpack)
        hooks.__enter__()
        self._stack().append((hooks, run))
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        hooks, run = self._stack().pop()
        hooks.__exit__(kind, value, trace)
        settle = run.settle
        if "torch._dynamo" in sys.modules:
            settle = torch.compiler.disable(settle)
        settle(None)
        if kind is None and self._model is None and self._seen():
            self._check_matches()

    def only_in(self, frame: FrameType | None) -> None:
        """The entry that was made last compresses nothing unless this call is running. A forward
        pass that ends with KeyboardInterrupt calls no hook that could leave the context.
        """
        self._stack()[-1][1].frame = frame

    def _stack(self) -> list[Any]:
        if not hasattr(self._entered, "stack"):
            self._entered.stack = []
        found: list[Any] = self._entered.stack
        return found

    def _key(self) -> int:
        if not self._rules.stochastic:
            return 0
        if self._step is not None:
            return self._step
        return int(torch.randint(_MOST_STEP, (), dtype=torch.int64, device="cpu"))

    def _seen(self) -> bool:
        return bool(self._names)

    def _check_matches(self) -> None:
        names = [name for one in self._names.values() for name in one.all()]
        self._rules.check_names(names)

    def _names_of(self, root: nn.Module) -> Names:
        found = self._names.get(root)
        if found is None:
            found = self._names[root] = Names(root)
        return found


def _made_again(arguments: tuple[Any, ...], step: int | None, measure: bool) -> compress_saved:
    return compress_saved(*arguments, step=step, measure=measure)


def _refuse_tracing() -> None:
    if torch.compiler.is_compiling():
        raise RuntimeError(
            "compress_saved is used inside of a compiled function, where torch cannot trace it; "
            "enter it around the call of the compiled function"
        )


def _unpack(packed: Packed) -> torch.Tensor:
    found: torch.Tensor = packed.unpack()
    return found


class _Run:
    """One entry of a context: its key, and the number of tensors so far."""

    def __init__(self, owner: compress_saved, step: int):
        self._owner, self._step = owner, step
        self._rank = _rank() if owner._rules.stochastic else 0
        self._number = 0
        self.frame: FrameType | None = None
        self._sources: weakref.WeakValueDictionary[tuple[Any, ...], Source]
        self._sources = weakref.WeakValueDictionary()
        self._later: list[tuple[int, Part]] = []  # numbers of their nodes
        self._largest = 0  # values of a tensor so far
        # Of each model that runs in it.
        self._weights: dict[nn.Module, set[int]] = {}
        self._frozen: dict[nn.Module, dict[torch.Size, list[torch.Tensor]]] = {}

    def pack(self, tensor: torch.Tensor) -> Packed:
        rules = self._owner._rules
        self.settle(_node())
        if self.frame is not None and not is_running(self.frame):
            return Kept(tensor)
        if (
            tensor.is_meta
            or tensor.numel() < rules.min_size
            or not has_storage(tensor)
            or tensor.layout != torch.strided
            or tensor.is_neg()
            or is_weight(tensor)
        ):
            return Kept(tensor)
        floating = tensor.dtype in _FLOATING
        if not floating and not integers.worth(tensor):
            return Kept(tensor)
        stack, compiled = (
            running()
            if rules.by_name or not tensor.requires_grad or self._measures()
            else ([], False)
        )
        if compiled and rules.by_name:
            raise RuntimeError(
                "compress_saved: a compiled function saves tensors of several modules at once, so "
                "overrides and filter, which go by the module's name, do not apply to it; leave "
                "them out, or call the model without torch.compile"
            )
        if self._is_statistic(tensor):
            return Kept(tensor)
        root = self._root(stack)
        if not tensor.requires_grad and root is not None and self._is_held(tensor, root):
            return Kept(tensor)
        region = region_of(tensor)
        if region is None or region.numel < rules.min_size:
            return Kept(tensor)
        name = "" if root is None else self._owner._names_of(root).of(stack)
        if rules.filter is not None and not rules.filter(name, tensor):
            return Kept(tensor)
        coding = rules.coding_for(name) if floating else rules.coding
        if coding is None:
            return Kept(tensor)
        with self._owner._lock:
            return self._packed(tensor, region, coding, name)

    def _is_statistic(self, tensor: torch.Tensor) -> bool:
        """Whether it is a number a row of what a node computes with, as the scale of a norm or the
        sum of a softmax: of few bits, it would change whole rows.
        """
        self._largest = max(self._largest, tensor.numel())
        if not tensor.is_floating_point() or tensor.numel() * _ROW > self._largest:
            return False
        alone = tensor.grad_fn is None and not tensor.requires_grad
        return alone or tensor.shape[-1:] == (1,)

    def _measures(self) -> bool:
        return self._owner.measure

    def _root(self, stack: list[nn.Module]) -> nn.Module | None:
        model = None if self._owner._model is None else self._owner._model()
        if model is not None and (not stack or model in stack):
            return model
        return stack[0] if stack else None

    def _is_held(self, tensor: torch.Tensor, root: nn.Module) -> bool:
        """Whether it is memory of the model: a buffer, a frozen parameter, or a cast of one."""
        names = self._owner._names_of(root)
        if root not in self._weights:
            self._weights[root] = names.storages()
        if tensor.untyped_storage()._cdata in self._weights[root]:
            return True
        if root not in self._frozen:
            self._frozen[root] = names.frozen()
        return is_cast_of(tensor, self._frozen[root])

    def _packed(self, tensor: torch.Tensor, region: Region, coding: Coding, name: str) -> Packed:
        key = (
            tensor.untyped_storage()._cdata,
            tensor.dtype,
            tensor._version,
            coding.name,
        )
        source = self._sources.get(key)
        if source is None or not source.holds(tensor):
            source = Source(tensor)
        part = source.part_for(region)
        if part is None:
            values = tensor.detach().as_strided(region.sizes, region.strides, region.offset)
            self._number += 1
            part = Part(
                region,
                functools.partial(self._fill, values, coding, name, self._number, tensor.shape),
            )
            if tensor.grad_fn is None and not tensor.requires_grad:
                # Some nodes save what they have yet to write, as the noise of rrelu.
                self._later.append((_node(), part))
            elif not part.settle():
                return Kept(tensor)
            source.parts.append(part)
            self._sources[key] = source
        return Handle(source, part, tensor)

    def settle(self, node: int | None) -> None:
        """Encodes what other nodes have saved; None: what any has."""
        if not self._later:
            return
        with self._owner._lock:
            ready = [part for number, part in self._later if number != node]
            self._later = [one for one in self._later if one[0] == node]
            for part in ready:
                part.settle()

    def _fill(
        self, values: torch.Tensor, coding: Coding, name: str, number: int, shape: torch.Size
    ) -> tuple[Decode, torch.Tensor | None] | None:
        """What decodes the values, and their payload; None where that would not be shorter."""
        numel, dtype, device = values.numel(), values.dtype, values.device
        ledger = self._owner._ledger
        if not dtype.is_floating_point:
            packed = integers.pack(values)
            if packed is None:
                return None
            nbytes = 0 if packed.codes is None else packed.codes.nbytes
            ledger.add(numel * values.itemsize, nbytes)
            return (lambda: integers.unpack(packed, numel, dtype, device)), packed.codes
        two = masks.pack(values)
        if two is not None:
            ledger.add(numel * values.itemsize, two.codes.nbytes)
            return (lambda: masks.unpack(two, numel, dtype)), two.codes
        if dtype not in coding.dtypes:
            allowed = ", ".join(str(one).removeprefix("torch.") for one in coding.dtypes)
            raise TypeError(
                f"compress_saved: module {name or '(root)'!r} saves a tensor of {dtype} of shape "
                f"{list(shape)}; {coding.name} takes {allowed}; choose another codec, such "
                'as "bounded", or leave the tensor out by filter'
            )
        payload = coding.encode(values, self._step, number, self._rank)
        if payload.nbytes >= numel * values.itemsize:  # 16 bits as "half" would win nothing
            return None

        def decode() -> torch.Tensor:
            return coding.decode(payload, numel, dtype, device)

        ledger.add(numel * values.itemsize, payload.nbytes)
        if self._measures():
            ledger.measure(name, values, decode().view(values.shape))
        return decode, payload


def _node() -> int:
    """The number of the node that is being made on this thread."""
    return int(torch._C._autograd._get_sequence_nr())


def _rank() -> int:
    import torch.distributed as dist

    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
