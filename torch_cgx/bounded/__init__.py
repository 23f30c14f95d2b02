"""Error-bounded compression of tensors: the bound holds for every value.

    from torch_cgx import bounded

    payload = bounded.compress(x, max_error=1e-4)   # |x - y| <= 1e-4 for every value
    y = bounded.decompress(payload)                 # the same shape and dtype

Uses are checkpoints, weights sent to a machine that joins, pseudo-gradients, and activations sent
between sites. Only `broadcast` needs a process group, and no function needs a GPU. docs/bounded.md
states the guarantee, docs/bounded_format.md the bytes. The entropy coder is the package zstandard:
`pip install "torch_cgx[bounded]"`.
"""

from torch_cgx.bounded._broadcast import broadcast
from torch_cgx.bounded._compress import compress
from torch_cgx.bounded._decompress import decompress
from torch_cgx.bounded._files import load, save
from torch_cgx.bounded._info import BlockInfo, Info, info
from torch_cgx.bounded._payload import PayloadError

__all__ = [
    "BlockInfo",
    "Info",
    "PayloadError",
    "broadcast",
    "compress",
    "decompress",
    "info",
    "load",
    "save",
]
