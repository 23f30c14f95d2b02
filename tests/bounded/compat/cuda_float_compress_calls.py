"""Calls on arrays and bytes, for the tests of the original format."""

from __future__ import annotations

import numpy as np
import torch

from torch_cgx.compat.cuda_float_compress import (
    cuszplus_compress,
    cuszplus_decompress,
)


def compress(x, max_error, **options):
    return cuszplus_compress(torch.from_numpy(np.asarray(x, np.float32)), max_error, **options)


def data_of(payload):
    return payload.numpy().tobytes()


def tensor_of(data):
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


def decompress(data):
    return cuszplus_decompress(tensor_of(data), "cpu").numpy()
