"""`compress_saved`: what nodes save for the backward pass is kept in few bits."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Mapping
from types import FrameType
from typing import Any

import torch
from torch import nn

from torch_cgx.activations.saved.codings import DEFAULT
from torch_cgx.activations.saved.entry import Entry, unpack
from torch_cgx.activations.saved.ledger import Ledger
from torch_cgx.activations.saved.modules import Names
from torch_cgx.activations.saved.rules import Config, Filter, Rules

_MOST_STEP = 2**63 - 1


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

    ActNN (Chen et al., ICML 2021) quantizes saved activations; AC-GC (Evans and Aamodt, NeurIPS
    2021) bounds their errors, as "bounded" does.
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
        self._entered = threading.local()

    # ---- what it says

    @property
    def errors(self) -> dict[str, float]:
        """With measure=True: the relative L2 error of each floating tensor of the last entry, by
        the name of the module that saved it; a module's second tensor is NAME#2, and so on. It is
        0 for masks, and where the codec would have needed as many bytes as the tensor.
        """
        return dict(self._ledger.errors)

    @property
    def bytes_saved(self) -> int:
        """Bytes that nodes have saved in the last entry and that payloads stand for now."""
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
        self._ledger = Ledger()
        entry = Entry(
            self._rules, self._ledger, self._key(), self._names_of, self._named, self.measure
        )
        pack, back = entry.pack, unpack
        if "torch._dynamo" in sys.modules:  # it would compile the hooks, too
            pack, back = torch.compiler.disable(pack), torch.compiler.disable(back)
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, back)
        hooks.__enter__()
        self._stack().append((hooks, entry))
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        hooks, entry = self._stack().pop()
        hooks.__exit__(kind, value, trace)
        settle = entry.settle
        if "torch._dynamo" in sys.modules:
            settle = torch.compiler.disable(settle)
        settle(None)
        entry.frame = None  # it and its callers hold their variables: the output, for one
        if kind is None and self._model is None and self._names:
            names = [name for one in self._names.values() for name in one.all()]
            self._rules.check_names(names)

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

    def _named(self) -> nn.Module | None:
        return None if self._model is None else self._model()

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
