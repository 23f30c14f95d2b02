"""Saved tensors in few bits: `compress_saved` and `compress`."""

from torch_cgx.activations.saved.context import compress_saved
from torch_cgx.activations.saved.model import Compression, compress

__all__ = ["Compression", "compress", "compress_saved"]
