"""Prints how large residuals get: the table of docs/numerics.md, Error feedback.

    python docs/pictures/measure_residuals.py [CALLS]

Five ranks contribute the same Gaussian gradients CALLS times (800). Printed is the norm of the sum
of the residuals by the norm of the sum of the gradients. "same signs": every call has the number 0.
"""

from __future__ import annotations

import sys

import torch

import torch_cgx

RANKS, VALUES = 5, 3000


def growth(codec: str, bits: int, algorithm: str, calls: int, same_signs: bool) -> float:
    """The size of the residuals after `calls` calls."""
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(VALUES, generator=generator) for _ in range(RANKS)]
    residuals = [torch.zeros(VALUES) for _ in range(RANKS)]
    for call in range(calls):
        torch_cgx.simulate(
            tensors,
            {"codec": codec, "bits": bits},
            algorithm,
            sequence=0 if same_signs else call,
            residuals=residuals,
        )
    return float(sum(residuals).norm() / sum(tensors).norm())


def main() -> None:
    """Prints a line for each codec, width and way of choosing signs."""
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 800
    for codec in ("maxmin", "rotated", "trellis"):
        # maxmin at 1 bit is refused.
        for bits in (1, 2, 4) if codec != "maxmin" else (2, 4):
            for same_signs in (False, True) if codec != "maxmin" else (False,):
                found = [
                    growth(codec, bits, algorithm, calls, same_signs)
                    for algorithm in ("oneshot", "sra")
                ]
                signs = ", same signs" if same_signs else ""
                print(f"{codec} {bits} bits{signs}: {found[0]:.2g} / {found[1]:.2g}", flush=True)


if __name__ == "__main__":
    main()
