"""Hadamard matrices of Sylvester's construction, and the transform by them."""

from __future__ import annotations

import functools

import torch

_FACTOR = 128  # rows of the largest matrix that is multiplied at once


def hadamard(size: int, signs: torch.Tensor) -> torch.Tensor:
    """The matrix H diag(signs) / sqrt(size), orthonormal: float64 [size, size] on the CPU. size: a
    power of two."""
    return _matrix(size) * signs.double() / size**0.5


@functools.lru_cache(16)
def _matrix(size: int) -> torch.Tensor:
    """Of 1 and -1."""
    matrix = torch.ones(1, 1, dtype=torch.float64, device="cpu")
    while matrix.shape[0] < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix


def transform(x: torch.Tensor) -> torch.Tensor:
    """H x for x [rows, columns], with H of 1 and -1; rows: a power of two. H is a Kronecker product
    of small ones, by which the rows are multiplied one after the other: 2 to 3 products of matrices
    in place of log2(rows) passes over x."""
    rows, columns = x.shape
    done = 1
    while done < rows:
        size = min(_FACTOR, rows // done)
        parts = x.reshape(rows // (size * done), size, done * columns)
        x = torch.matmul(_matrix(size).to(device=x.device, dtype=x.dtype), parts)
        done *= size
    return x.reshape(rows, columns)
