"""Encoding and decoding of CUDA tensors: kernels turn values into symbols and symbols into values;
the CPU decides how a block is written and runs the entropy coder. The payloads are the same as the
CPU's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from torch_cgx import _C
from torch_cgx.bounded._entropy import Coder, lent
from torch_cgx.bounded._memory import pinned
from torch_cgx.bounded._payload import Payload, content_of, of_block
from torch_cgx.bounded._threads import each

_ops = torch.ops.torch_cgx

# Blocks that are processed together: 64 MiB of float32.
_SLAB = 256
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def encode_blocks(values: torch.Tensor, maps: Any, arena: Any) -> None:
    """Encodes all blocks into the arena. values: contiguous, aligned."""
    flat, size = values.view(-1), _C.BOUNDED_BLOCK_VALUES
    shape = list(values.shape)
    for start in range(0, -(-flat.numel() // size), _SLAB):
        part = flat[start * size : (start + _SLAB) * size]
        _encode_slab(part, maps, arena, start, shape)


def _encode_slab(x: torch.Tensor, maps: Any, arena: Any, start: int, shape: list[int]) -> None:
    """Encodes the blocks of x into the arena; `start` is the number of the first in the tensor of
    that shape.
    """
    slab, size = _C.BoundedSlab(maps, x.numel()), _C.BOUNDED_BLOCK_VALUES
    looked = _to_host(_ops.bounded_look(x, **maps.key))
    # The values by which it shows whether blocks are fields.
    encoder = _C.BoundedEncoder(maps)
    places = [
        slab.field_places(encoder, block, shape, (start + block) * size)
        for block in range(slab.blocks)
    ]
    begins = list(itertools.accumulate((len(some) for some in places), initial=0))
    bits = x.view(_BITS[x.element_size()])  # of all types torch can take values at places of these
    values = _to_host(bits[torch.cat(places).to(x.device)])

    def chooser(_: Coder) -> Callable[[int], None]:
        encoder = _C.BoundedEncoder(maps)

        def choose(block: int) -> None:
            first = begins[block]
            slab.plan(encoder, block, looked, values, first, begins[block + 1] - first)

        return choose

    each(slab.blocks, chooser)
    encoded = _to_host(_ops.bounded_encode(x, _forms(slab), slab.lay_out(), **maps.key))

    def finisher(entropy: Coder) -> Callable[[int], None]:
        encoder = _C.BoundedEncoder(maps)

        def finish(block: int) -> None:
            if slab.adopt(encoder, block, encoded):
                frame = entropy.frame_of(encoder)
                if not encoder.is_raw(len(frame)):
                    encoder.finish(frame, arena, start + block)
                    return
            # Many outliers, perhaps a field, or values that are kept as they are.
            values = x[block * size : (block + 1) * size].cpu()
            encoder.encode(values, 0, values.numel(), shape, (start + block) * size)
            entropy.finish(encoder, arena, start + block)

        return finish

    each(slab.blocks, finisher)


def decode_into(opened: Payload, first: int, last: int, y: torch.Tensor) -> None:
    """Decodes the values [first, last) into a contiguous tensor on a GPU. PayloadError."""
    if first >= last:
        return
    size, flat = _C.BOUNDED_BLOCK_VALUES, y.view(-1)
    lowest, highest = first // size, (last - 1) // size
    under_way = []
    for start in range(lowest, highest + 1, _SLAB):
        stop = min(start + _SLAB, highest + 1)
        under_way.append((start, _decode_slab(opened, start, stop, (first, last), flat)))
    for start, faults in under_way:
        for number in faults.cpu().nonzero().flatten().tolist():
            _refuse(opened, start + number, y.dtype)


def _decode_slab(
    opened: Payload, start: int, stop: int, wanted: tuple[int, int], flat: torch.Tensor
) -> torch.Tensor:
    """Enqueues the decoding of blocks [start, stop) on the current stream. Returns a tensor with a
    number for each block, which is not 0 if the kernel could not decode it.
    """
    maps, size = opened.maps(), _C.BOUNDED_BLOCK_VALUES
    values = min(stop * size, opened.reals) - start * size
    slab = _C.BoundedSlab(maps, values)

    def opener(_: Coder) -> Callable[[int], Any]:
        decoder = _C.BoundedDecoder(maps)

        def open_block(number: int) -> Any:
            block = start + number
            n, begin = opened.values_of(block), block * size
            low, high = (min(max(place, begin), begin + n) - begin for place in wanted)
            with of_block(block):
                opened_block = decoder.open(opened.block(block), n)
            slab.open(number, opened_block, begin - wanted[0], low, high)
            return opened_block

        return open_block

    blocks = each(stop - start, opener)
    host = pinned((slab.lay_out(),), torch.uint8)

    def filler(entropy: Coder) -> Callable[[int], None]:
        def fill(number: int) -> None:
            opened_block = blocks[number]
            with of_block(start + number):
                slab.fill(number, opened_block, content_of(opened_block, entropy), host)

        return fill

    each(stop - start, filler)
    encoded = host.to(flat.device, non_blocking=True)
    faults: torch.Tensor = _ops.bounded_decode(encoded, _forms(slab), values, **maps.key, out=flat)
    return faults


def _forms(slab: Any) -> torch.Tensor:
    """How the blocks are written, as the operators take it."""
    return torch.frombuffer(slab.forms(), dtype=torch.uint8)


def _refuse(opened: Payload, block: int, dtype: torch.dtype) -> None:
    """Decodes a block that the kernel could not decode on the CPU, which raises its error."""
    n, maps = opened.values_of(block), opened.maps()
    decoder = _C.BoundedDecoder(maps)
    values = torch.empty(n, dtype=dtype, device="cpu")
    with of_block(block), lent() as entropy:
        opened_block = decoder.open(opened.block(block), n)
        decoder.decode(opened_block, content_of(opened_block, entropy), 0, n, values, 0)
    raise RuntimeError(f"block {block}: the GPU kernel refused a block that the CPU decodes")


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in pinned memory. Waits for the device."""
    return pinned(tensor.shape, tensor.dtype).copy_(tensor)
