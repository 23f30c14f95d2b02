"""Lightning over cgx: one line chooses backend and compression.

torchrun --nproc-per-node 2 examples/recipes/lightning_ddp.py
"""

from __future__ import annotations

import argparse

import lightning
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from toy import batch, make_model, summary

from cgx_utils.trainers.lightning import CGXStrategy, MonitorCallback


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = make_model()
        self.losses: list[float] = []

    def training_step(self, pair: list[torch.Tensor], _: int) -> torch.Tensor:
        x, labels = pair
        loss = F.cross_entropy(self.net(x), labels)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, pair: list[torch.Tensor], _: int) -> None:
        x, labels = pair
        # Averaged over all ranks, exactly: only gradients are compressed.
        self.log("val_loss", F.cross_entropy(self.net(x), labels), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def loader(first: int, end: int) -> DataLoader:
    batches = [batch(0, number) for number in range(first, end)]
    data = TensorDataset(*(torch.cat(parts) for parts in zip(*batches, strict=True)))
    return DataLoader(data, batch_size=32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--accumulate", type=int, default=1, help="batches in a step")
    args = parser.parse_args()
    steps = args.steps * args.accumulate * args.ranks
    training, validation = loader(0, steps), loader(steps, steps + 4 * args.ranks)
    trainer = lightning.Trainer(
        strategy=CGXStrategy(bits=4, bucket_size=512),  # the one line
        callbacks=[MonitorCallback(every=20)],  # rank 0 shows bytes and errors
        accelerator="cpu",
        devices=args.ranks,
        max_epochs=1,
        accumulate_grad_batches=args.accumulate,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Classifier()
    trainer.fit(model, training, validation)
    shown = (
        f"rank {trainer.global_rank}: validation loss {trainer.callback_metrics['val_loss']:.6f}"
    )
    print(f"{shown}\n{summary(model, 0, model.losses)}\n", end="", flush=True)


if __name__ == "__main__":
    main()
