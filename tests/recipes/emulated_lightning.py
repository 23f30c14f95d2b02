"""Two ranks of Lightning: the recipe's classifier, emulated before fit(), which makes the optimizer
and the process group and validates in inference mode.
"""

from __future__ import annotations

import sys

import lightning
import torch
from lightning_ddp import Classifier, loader
from toy import weights_of

from cgx_utils.trainers.lightning import CGXStrategy
from torch_cgx import emulate

for recipe in sys.argv[1:]:
    model = Classifier()
    classes = [type(module) for module in model.modules()]
    emulation = emulate.apply(model, recipe=recipe, first_last="cast")
    trainer = lightning.Trainer(
        strategy=CGXStrategy(bits=8),
        accelerator="cpu",
        devices=2,
        max_steps=20,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader(0, 40), loader(40, 44))
    kinds = ",".join(emulation.ledger().kinds())
    bits = emulation.ledger().bits
    emulation.remove()
    assert [type(module) for module in model.modules()] == classes
    assert torch.isfinite(trainer.callback_metrics["val_loss"])
    print(
        f"rank {trainer.global_rank}: {recipe}, loss {model.losses[0]:.3f} to "
        f"{model.losses[-1]:.3f}, weights {weights_of(model)}, {bits:.2f} bits of {kinds}\n",
        end="",
        flush=True,
    )
