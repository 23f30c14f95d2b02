"""`activations.memory`: what a model keeps for backward, by module and by kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torch_cgx._unchanged import Unchanged
from torch_cgx.activations.report.kinds import name_kinds
from torch_cgx.activations.report.peak import Peak
from torch_cgx.activations.report.report import Report, report_of
from torch_cgx.activations.report.saves import Saves
from torch_cgx.activations.report.savings import convertible


def memory(
    model: torch.nn.Module,
    *batch: Any,
    loss: Callable[[Any], torch.Tensor] | None = None,
    **named_batch: Any,
) -> Report:
    """Runs one forward and backward pass, and counts the bytes that are kept between the two.

    Counted is what lives at the end of the forward pass (and of the loss): each storage once,
    however many nodes and views share it, with all of its bytes, since torch keeps it whole. The
    model's parameters and buffers are not counted, nor is what a checkpoint computes again. What
    hooks on saved tensors pack, around the call or inside the model, is counted as they hold it.
    What torch.compile has compiled keeps tensors that are of the kind "other".

    The model is as before afterwards, also after an exception: gradients, buffers, attributes,
    training mode and random numbers. Parameters that the forward pass or a hook changes stay so.
    Tensors of the batch are detached from what they were computed of. A model that communicates is
    called on all its ranks alike.

    Args:
        model: in the mode and on the device in which it is trained.
        batch, named_batch: arguments of the model.
        loss: a function of the model's output that returns a tensor of one value. None: the sum of
            all floating-point tensors of the output that require a gradient, which keeps nothing.

    Raises:
        TypeError: `model` is no module, or `loss` is no function.
        ValueError: the model is a ScriptModule; there is no batch; a parameter has no shape yet;
            the output requires no gradient; or the loss is not one value that requires one.
    """
    _check(model, batch or named_batch, loss)
    batch, named_batch = _detached(batch), _detached(named_batch)
    given = tensors_of((batch, named_batch))
    devices = {t.device for t in (*model.parameters(), *model.buffers(), *given)}
    with Unchanged(model, given) as unchanged:
        where = convertible(model)
        saves = Saves(model)
        with Peak(devices) as peak:
            with torch.enable_grad(), saves.recording():
                output = model(*batch, **named_batch)
                roots = _roots(output, loss)
            graph = saves.graph([*roots, *tensors_of(output)])
            for leaf in graph.leaves:
                unchanged.leaf(leaf)
            stored = saves.stored(graph)
            del graph
            with torch.enable_grad():  # the caller may have disabled it
                torch.autograd.backward([root.sum() for root in roots])
        gradients = sum(_bytes_of(grad) for grad in unchanged.gradients())
    name_kinds(stored)
    parameters = sum(_bytes_of(parameter) for parameter in model.parameters())
    return report_of(stored, peak.found(saves.peak), parameters, gradients, where)


def _detached(value: Any) -> Any:
    """Containers of their kind, with leaves in place of tensors that have a history."""
    if isinstance(value, torch.Tensor):
        return value.detach().requires_grad_() if value.grad_fn is not None else value
    if type(value) in (list, tuple):
        return type(value)(map(_detached, value))
    if type(value) is dict:
        return {key: _detached(one) for key, one in value.items()}
    return value


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors of a batch or an output: in containers and dataclasses."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, (list, tuple)):
        return [tensor for one in value for tensor in tensors_of(one)]
    return []


def _check(model: Any, batch: Any, loss: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is of type {type(model).__name__}; allowed: a torch.nn.Module")
    if isinstance(model, torch.jit.ScriptModule):
        raise ValueError("model is a torch.jit.ScriptModule; allowed: the module it was made of")
    if not batch:
        raise ValueError("no batch; allowed: the model's arguments, as in memory(model, inputs)")
    if loss is not None and not callable(loss):
        raise TypeError(
            f"loss is of type {type(loss).__name__}; allowed: a function of the model's output"
        )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if torch.nn.parameter.is_lazy(tensor):
            raise ValueError(f"{name} has no shape yet; allowed: a lazy module that has run once")


def _roots(output: Any, loss: Callable[[Any], torch.Tensor] | None) -> list[torch.Tensor]:
    """What backward begins with."""
    found = [one for one in tensors_of(output) if one.requires_grad and one.dtype.is_floating_point]
    if not found:
        raise ValueError(
            "nothing is kept: the output requires no gradient; allowed: an output with a "
            "floating-point tensor that requires one"
        )
    if loss is None:
        return found
    value = loss(output)
    if not isinstance(value, torch.Tensor):
        what = f"an object of type {type(value).__name__}"
    elif value.numel() != 1:
        what = f"a tensor of shape {list(value.shape)}"
    elif not (value.requires_grad and value.dtype.is_floating_point):
        what = "a tensor that requires no gradient"
    else:
        return [value]
    raise ValueError(f"loss returned {what}; allowed: a tensor of one value that requires one")


def _bytes_of(tensor: torch.Tensor) -> int:
    """Of the values that this rank has."""
    to_local = getattr(tensor, "to_local", None)  # of a DTensor
    local = tensor if to_local is None else to_local()
    return local.numel() * local.element_size()
