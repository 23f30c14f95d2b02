"""Who casts the operands of a layer: formats, random numbers, and what is kept between steps."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from torch_cgx._hadamard import hadamard
from torch_cgx.emulate.gemm import product as products
from torch_cgx.emulate.gemm.formats import OPERANDS, GemmFormats, OperandFormat, Scaled, by_axis
from torch_cgx.emulate.gemm.operand import Key, Result, cast_along
from torch_cgx.emulate.gemm.scales import History

_numbers = itertools.count(1)
_roundings: weakref.WeakValueDictionary[int, Rounding] = weakref.WeakValueDictionary()


class Clock:
    """Counts forward passes of a training: random numbers of each are others. A pass ends where a
    layer is called again; layers that a checkpoint runs again in the backward pass, and calls in
    evaluation mode without gradients, count for nothing: such a layer has the numbers of the last
    forward pass. Not thread-safe.
    """

    def __init__(self, seed: int = 0):
        self.seed = seed
        self.step = 0
        self._seen: set[int] = set()
        self._evaluations = 0
        self._evaluated: set[int] = set()

    @property
    def rank_seed(self) -> int:
        """Each rank rounds its own activations with its own numbers, also if the process group is
        made after this."""
        return (self.seed + rank() * 0x9E3779B97F4A7C15) % 2**64

    def begin(self, layer: int, training: bool) -> int:
        """A layer's forward pass begins: the number of the model's."""
        if in_backward():
            return self.step
        seen = self._seen if training else self._evaluated
        if layer in seen:
            self.step += training
            self._evaluations += not training
            seen.clear()
        seen.add(layer)
        return self.step

    def occasion(self, step: int, training: bool) -> int:
        """What tells a forward pass from others, evaluations included."""
        return step if training else -1 - self._evaluations

    @property
    def next_step(self) -> int:
        """Of the next forward pass."""
        return self.step + bool(self._seen)

    def set_next_step(self, step: int) -> None:
        self.step = step
        self._seen.clear()


def rank() -> int:
    """Of this process in the default group; 0 without one."""
    dist = torch.distributed
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)


class Call(NamedTuple):
    """One forward pass of a layer, with its backward pass. number: of the Rounding. step: of the
    model's forward pass. training: whether the layer
    trains, or gradients are wanted. size: bytes of a value of its tensors,
    before they are widened for the product.
    """

    number: int
    step: int
    training: bool
    size: int = 4


class Facts(NamedTuple):
    """What does not change between the calls of a layer, as plain values. names: of the operands
    that are cast. rectangles: of those whose format has rectangles of blocks. keep_input: wgrad's
    input has the same values as forward's; keep_weight: dgrad's weight as forward's; keep_gradient:
    wgrad's gradient as dgrad's. fp32: how GEMMs add.
    """

    names: tuple[str, ...]
    rectangles: tuple[str, ...]
    keep_input: bool
    keep_weight: bool
    keep_gradient: bool
    hadamard: int
    fp32: bool


class Rounding:
    """Casts the operands of one layer's GEMMs. Its number names it in the process, also in compiled
    graphs. index: of the layer in the model, of which its random numbers are a function.
    """

    def __init__(self, formats: GemmFormats, clock: Clock, index: int = 0):
        self.number = next(_numbers)
        self.formats, self.clock, self.index = formats, clock, index
        self.histories = {
            name: History(format)
            for name, format in formats.operands
            if isinstance(format, Scaled) and format.scale == "delayed"
        }
        self.facts = _facts(formats)
        _roundings[self.number] = self

    def __reduce__(self) -> Any:
        """A copy has a number, counts and histories of its own."""
        return type(self), (self.formats, self.clock, self.index), {"histories": self.histories}

    def key(self, operand: str, step: int) -> Key:
        """Of an operand's random numbers."""
        return Key(self.clock.rank_seed, step, self.index * len(OPERANDS) + OPERANDS.index(operand))

    def cast(self, x: torch.Tensor, operand: str, axis: int, call: Call) -> torch.Tensor:
        """x as this operand, whose contraction runs along `axis`."""
        return self._cast(x, operand, axis, call, False).values

    def _cast(self, x: torch.Tensor, operand: str, axis: int, call: Call, measure: bool) -> Result:
        scale = None
        if operand in self.histories:
            history = self.histories[operand]
            again = operand.startswith("forward") and in_backward()
            scale = history.last if again else history.scale(x, call.training)
        format = self.formats.by_name[operand]
        return cast_along(x, format, axis, self.key(operand, call.step), measure, scale)

    def begin(self, training: bool) -> int:
        """A forward pass of the layer begins: its step."""
        return self.clock.begin(self.index, training)

    @functools.cached_property
    def matrix(self) -> torch.Tensor:
        """The Hadamard transform with this seed's random signs: fixed for a training, on all
        ranks, as in arXiv 2509.25149."""
        generator = torch.Generator("cpu").manual_seed(self.clock.seed % 2**63)
        bits = torch.randint(
            0,
            2,
            (self.formats.hadamard,),
            generator=generator,
            dtype=torch.int64,
            device="cpu",
        )
        return hadamard(self.formats.hadamard, 1 - 2 * bits)


def rounding_of(number: int) -> Rounding:
    return _roundings[number]


def begin(number: int, training: bool) -> Call:
    """A layer's forward pass begins. In a compiled graph the step is 0: the operators ask for it
    when they run.
    """
    counts = training or torch.is_grad_enabled()
    if torch.compiler.is_compiling():
        return Call(number, 0, counts)
    return Call(number, rounding_of(number).begin(counts), counts)


def _same(formats: GemmFormats, one: str, other: str) -> bool:
    """Whether two operands have the same values if they are cast from the same ones."""
    a, b = (formats.by_name.get(name) for name in (one, other))
    if a is None or b is None or a != b:
        return a is b
    return not by_axis(a) and not _stochastic(a)


def _stochastic(format: OperandFormat) -> bool:
    return _stochastic(format.format) if isinstance(format, Scaled) else format.stochastic


def facts_of(number: int) -> Facts:
    if torch.compiler.is_compiling():
        return Facts(*_constant_facts(number))
    return rounding_of(number).facts


def _facts(formats: GemmFormats) -> Facts:
    plain = formats.hadamard == 0
    return Facts(
        tuple(formats.by_name),
        tuple(n for n, f in formats.operands if isinstance(getattr(f, "axis", None), tuple)),
        plain and _same(formats, "forward.input", "wgrad.input"),
        _same(formats, "forward.weight", "dgrad.weight"),
        plain and _same(formats, "dgrad.gradient", "wgrad.gradient"),
        formats.hadamard,
        formats.accumulation.fp32,
    )


def _constant_facts(number: int) -> tuple[Any, ...]:
    return tuple(rounding_of(number).facts)


# torch.compile takes the result for a constant.
_constant_facts._dynamo_marked_constant = True  # type: ignore[attr-defined]


_LIBRARY = torch.library.Library("torch_cgx", "FRAGMENT")
_LIBRARY.define(
    "emulate_operand(Tensor x, int rounding, str operand, int axis, bool training, int size)"
    " -> Tensor"
)
_LIBRARY.define("emulate_matrix(Tensor x, int rounding) -> Tensor")
_LIBRARY.define("emulate_layer_product(Tensor a, Tensor b, int rounding) -> Tensor")


def _operand(
    x: torch.Tensor, number: int, operand: str, axis: int, training: bool, size: int
) -> torch.Tensor:
    rounding = rounding_of(number)
    if operand == OPERANDS[0]:
        rounding.begin(training)
    if operand not in rounding.formats.by_name:
        return x.clone()
    return rounding.cast(x, operand, axis, Call(number, rounding.clock.step, training, size))


def _matrix(x: torch.Tensor, rounding: int) -> torch.Tensor:
    return rounding_of(rounding).matrix.to(x)


def _fake_matrix(x: torch.Tensor, rounding: int) -> torch.Tensor:
    return x.new_empty((rounding_of(rounding).formats.hadamard,) * 2)


def _product(a: torch.Tensor, b: torch.Tensor, rounding: int) -> torch.Tensor:
    return products.product(a, b, rounding_of(rounding).formats.accumulation)


def _fake_product(a: torch.Tensor, b: torch.Tensor, rounding: int) -> torch.Tensor:
    return torch.matmul(a, b)


_LIBRARY.impl("emulate_operand", _operand, "CompositeExplicitAutograd")
_LIBRARY.impl("emulate_matrix", _matrix, "CompositeExplicitAutograd")
_LIBRARY.impl("emulate_layer_product", _product, "CompositeExplicitAutograd")
torch.library.register_fake("torch_cgx::emulate_operand", lambda x, *_: torch.empty_like(x))
torch.library.register_fake("torch_cgx::emulate_matrix", _fake_matrix)
torch.library.register_fake("torch_cgx::emulate_layer_product", _fake_product)

Cast = Callable[[torch.Tensor, str, int], torch.Tensor]


def caster(call: Call) -> Cast:
    """A function of a tensor, an operand's name and the contraction's dimension."""
    number, _, training, size = call
    names = facts_of(number).names

    def cast(x: torch.Tensor, operand: str, axis: int) -> torch.Tensor:
        compiling = torch.compiler.is_compiling()
        if operand not in names and not (compiling and operand == OPERANDS[0]):
            return x
        if compiling:  # the first operand also begins the layer's forward pass
            found: torch.Tensor = torch.ops.torch_cgx.emulate_operand(
                x, number, operand, axis, training, size
            )
            return found
        return rounding_of(number).cast(x, operand, axis, call)

    return cast


def hadamard_matrix(number: int, x: torch.Tensor) -> torch.Tensor:
    """A layer's, of x's dtype and device."""
    if torch.compiler.is_compiling():
        found: torch.Tensor = torch.ops.torch_cgx.emulate_matrix(x, number)
        return found
    return rounding_of(number).matrix.to(x)


def product(number: int, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a b by a layer's accumulation, which is no "fp32"; of float32."""
    if torch.compiler.is_compiling():
        found: torch.Tensor = torch.ops.torch_cgx.emulate_layer_product(a, b, number)
        return found
    return products.product(a, b, rounding_of(number).formats.accumulation)
