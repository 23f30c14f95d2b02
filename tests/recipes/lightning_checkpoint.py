"""Two ranks: a Lightning training saves, and another one goes on with its residuals."""

from __future__ import annotations

import sys

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

from cgx_utils import CGXState
from cgx_utils.trainers.lightning import CGXStrategy


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(64, 64)

    def training_step(self, pair: list[torch.Tensor], _: int) -> torch.Tensor:
        return self.layer(pair[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(steps: int, **options: object) -> tuple[lightning.Trainer, CGXState]:
    state = CGXState(config={"bits": 2}, error_feedback=True)
    data = torch.randn(512, 64, generator=torch.Generator().manual_seed(3))
    trainer = lightning.Trainer(
        strategy=CGXStrategy(state),
        accelerator="cpu",
        devices=2,
        max_steps=steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Model(), DataLoader(TensorDataset(data), batch_size=32), **options)
    return trainer, state


trainer, _ = fit(4)
path = sys.argv[1] + ".ckpt"
trainer.save_checkpoint(path)
saved = torch.load(path, weights_only=True)["cgx"]
rank = trainer.global_rank
mine = saved[rank]["error_feedback"]["residuals"]
other = saved[1 - rank]["error_feedback"]["residuals"]
_, restored = fit(4, ckpt_path=path, weights_only=True)  # no step is left: what was loaded
section = restored.state_dict()["error_feedback"]
assert sorted(section["residuals"]) == sorted(mine), section
for name, residual in mine.items():
    assert torch.equal(section["residuals"][name], residual)
    assert residual.abs().max() == 0 or not torch.equal(residual, other[name])
assert any(residual.abs().max() > 0 for residual in mine.values())
print(f"rank {rank}: restored\n", end="", flush=True)
