"""Hugging Face Accelerate over cgx: one line before `prepare`.

torchrun --nproc-per-node 2 examples/recipes/accelerate_ddp.py
"""

from __future__ import annotations

import argparse

import torch.nn.functional as F
from accelerate import Accelerator
from torch import optim
from toy import batch, make_model, summary

from cgx_utils import Monitor
from cgx_utils.trainers.accelerate import compress


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--accumulate", type=int, default=1, help="batches in a step")
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate)
    state = compress(accelerator, bits=4, bucket_size=512)  # the one line
    module = make_model()
    model, optimizer = accelerator.prepare(
        module, optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    )

    losses = []
    with Monitor(model, every=20):  # rank 0 shows bytes and errors
        for number in range(args.steps * args.accumulate):
            x, labels = batch(accelerator.process_index, number)
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    print(summary(module, 0, losses, state.group) + "\n", end="", flush=True)
    del model, optimizer  # before their groups
    accelerator.end_training()


if __name__ == "__main__":
    main()
