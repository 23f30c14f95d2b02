"""The parameters' names.

A parameter that is tied has several names; it is known by the first, as `named_parameters()` gives
it, and rules may select it by any. Wrappers leave no trace in names (`clean_names`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

from torch_cgx import _config

T = TypeVar("T")
Pairs = list[tuple[str, torch.Tensor]]

# Of torch.compile, activation checkpointing and FSDP1.
_WRAPPERS = {"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}
_DDP = "module"


class Named(NamedTuple):
    """A parameter: the name that it is known by, all its names, and the names with wrappers."""

    name: str
    parameter: torch.Tensor
    names: tuple[str, ...]
    wrapped: tuple[str, ...]


def clean_names(names: Iterable[str]) -> list[str]:
    """Names of one model's parameters without what wrappers add: "_orig_mod.",
    "_checkpoint_wrapped_module.", "_fsdp_wrapped_module." anywhere, and "module." where all names
    begin with it. As torch.distributed.fsdp cleans names.
    """
    found = [".".join(word for word in name.split(".") if word not in _WRAPPERS) for name in names]
    while found and all(name.startswith(_DDP + ".") for name in found):
        found = [name[len(_DDP) + 1 :] for name in found]
    return found


def mentions_wrapper(text: str) -> bool:
    """Whether a rule was written for names with wrappers."""
    return any(wrapper in text for wrapper in (*_WRAPPERS, _DDP))


def named_of(model: torch.nn.Module) -> list[Named]:
    """The parameters of a model, each once, in the order of `named_parameters()`."""
    wrappers = {
        f"{name}.{_DDP}" if name else _DDP
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, (DataParallel, DistributedDataParallel))
    }
    pairs: Pairs = list(model.named_parameters(remove_duplicate=False))
    return _named_of_pairs(pairs, [_without(name, wrappers) for name, _ in pairs])


def named_of_source(source: Any) -> list[Named]:
    """Of a module, or of (name, parameter) pairs. TypeError names anything else."""
    if isinstance(source, DistributedDataParallel):
        source = source.module
    if isinstance(source, torch.nn.Module):
        return named_of(source)
    pairs = _config.list_of("named_parameters", source, "a module, (name, parameter) pairs, None")
    for pair in pairs:
        ok = isinstance(pair, tuple) and len(pair) == 2
        if not (ok and isinstance(pair[0], str) and isinstance(pair[1], torch.Tensor)):
            raise TypeError(
                f"named_parameters holds {type(pair).__name__}; allowed: a module, or "
                "(name, parameter) pairs as model.named_parameters() gives"
            )
    return _named_of_pairs(pairs, [name for name, _ in pairs])


def with_names_of(one: Named, other: Named | None) -> Named:
    """With the names of `other`, too: the same parameter, named elsewhere."""
    if other is None:
        return one
    names = tuple(dict.fromkeys((*one.names, *other.names)))
    return one._replace(names=names, wrapped=tuple(dict.fromkeys((*one.wrapped, *other.wrapped))))


def once(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """The names to keep of a model's tensors in a file, and what to show for them. A tied tensor,
    which shares its memory with others of its shape, has its first name; none has wrappers.
    """
    first: dict[Any, str] = {}
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        first.setdefault(place if tensor.data_ptr() else name, name)
    kept = list(first.values())
    clean = clean_names(kept)
    return dict(zip(kept, clean if len(set(clean)) == len(clean) else kept, strict=True))


def translate(saved: Mapping[str, T], model: Sequence[Named], what: str) -> dict[str, T]:
    """What a state holds by name, by the names of this model: it may have been saved with other
    wrappers, or by an other name of a tied parameter. Unknown names stay as they are.

    ValueError, which begins with `what`, where two names are of one parameter, with different
    values.
    """
    known: dict[str, str] = {}
    for one in model:
        for name in (*one.names, *one.wrapped):
            known.setdefault(name, one.name)
    found: dict[str, T] = {}
    origin: dict[str, str] = {}
    for name, clean in zip(saved, clean_names(saved), strict=True):
        own = known.get(name) or known.get(clean) or clean
        if own in found and not _equal(found[own], saved[name]):
            raise ValueError(
                f"{what} has entries for {origin[own]!r} and {name!r}, which are one parameter "
                "here; allowed: a state of a model whose parameters are tied likewise"
            )
        found[own], origin[own] = saved[name], name
    return found


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    return bool(first == second)


def _without(name: str, wrappers: set[str]) -> str:
    """A name without the words that lead to the module in a DDP instance. wrappers: their paths."""
    words = name.split(".")
    kept = (i for i in range(len(words)) if ".".join(words[: i + 1]) not in wrappers)
    return ".".join(words[i] for i in kept)


def _named_of_pairs(pairs: Pairs, shown: Sequence[str]) -> list[Named]:
    """shown: the pairs' names, perhaps without some wrappers."""
    clean = clean_names(shown)
    owners: dict[str, set[int]] = {}
    for name, (_, parameter) in zip(clean, pairs, strict=True):
        owners.setdefault(name, set()).add(id(parameter))
    parameters: dict[int, torch.Tensor] = {}
    names: dict[int, dict[str, None]] = {}
    wrapped: dict[int, dict[str, None]] = {}
    for name, (raw, parameter) in zip(clean, pairs, strict=True):
        key = id(parameter)
        parameters[key] = parameter
        # Two parameters that wrappers alone tell apart keep them.
        names.setdefault(key, {})[raw if len(owners[name]) > 1 else name] = None
        wrapped.setdefault(key, {})[raw] = None
    return [
        Named(next(iter(names[key])), parameter, tuple(names[key]), tuple(wrapped[key]))
        for key, parameter in parameters.items()
    ]
