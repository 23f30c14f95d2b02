"""Optimizers for training with large batches: `LARS`.

from cgx_utils.optim import LARS

optimizer = LARS(model.parameters(), lr=1.6)
"""

from cgx_utils.optim.lars import LARS, biases_and_norms

__all__ = ["LARS", "biases_and_norms"]
