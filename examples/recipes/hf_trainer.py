"""Hugging Face Trainer over cgx: a tiny random GPT-2 learns made-up sequences; one line compresses.

torchrun --nproc-per-node 2 examples/recipes/hf_trainer.py --output /tmp/run
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from toy import summary
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from cgx_utils import CGXState
from cgx_utils.trainers.hf import MonitorCallback, compress


class Counting(Dataset[dict[str, torch.Tensor]]):
    """Sequences of 32 numbers that count up from anywhere, modulo 64."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        numbers = (torch.arange(32) + 7 * index) % 64
        return {"input_ids": numbers, "labels": numbers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", help="a folder for checkpoints; default: a temporary one")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--accumulate", type=int, default=1, help="batches in a step")
    parser.add_argument("--error-feedback", action="store_true")
    parser.add_argument("--resume", action="store_true", help="from the last checkpoint in OUTPUT")
    args = parser.parse_args()
    torch.manual_seed(1)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=64,
            n_positions=32,
            n_embd=64,
            n_layer=2,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    with tempfile.TemporaryDirectory() as temporary:
        trainer = Trainer(
            model,
            TrainingArguments(
                output_dir=args.output or temporary,
                max_steps=args.steps,
                per_device_train_batch_size=8,
                gradient_accumulation_steps=args.accumulate,
                learning_rate=3e-3,
                logging_steps=5,
                save_steps=20,
                save_strategy="steps" if args.output else "no",
                use_cpu=True,
                report_to="none",
                disable_tqdm=True,
                dataloader_pin_memory=False,
            ),
            train_dataset=Counting(),
            callbacks=[MonitorCallback(every=20)],  # rank 0 shows bytes and errors
        )
        state = compress(  # the one line
            trainer, CGXState(bits=4, error_feedback=args.error_feedback)
        )
        trainer.train(resume_from_checkpoint=args.resume or None)
        losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
        print(summary(model, 0, losses, state.group) + "\n", end="", flush=True)


if __name__ == "__main__":
    main()
