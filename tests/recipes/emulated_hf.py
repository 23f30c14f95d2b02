"""Two ranks of the Hugging Face Trainer: a tiny GPT-2, whose linear layers are Conv1D, emulated
before train(), which makes the optimizer.
"""

from __future__ import annotations

import sys
import tempfile

import torch
import torch.distributed as dist
from hf_trainer import Counting
from toy import weights_of
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from cgx_utils.trainers.hf import compress
from torch_cgx import emulate

sizes = {"vocab_size": 64, "n_positions": 32, "n_embd": 64, "n_layer": 2, "n_head": 2}
for recipe in sys.argv[1:]:
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    classes = [type(module) for module in model.modules()]
    emulation = emulate.apply(model, recipe=recipe, first_last="cast")
    if recipe == "mxfp8":
        parts = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
        every = [f"transformer.h.{i}.{part}" for i in range(2) for part in parts]
        assert list(emulation.layers) == [*every, "lm_head"], emulation.layers
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model,
            TrainingArguments(
                output_dir=folder,
                max_steps=20,
                per_device_train_batch_size=8,
                learning_rate=3e-3,
                logging_steps=5,
                save_strategy="no",
                use_cpu=True,
                report_to="none",
                disable_tqdm=True,
                dataloader_pin_memory=False,
            ),
            train_dataset=Counting(),
        )
        compress(trainer, bits=8)
        trainer.train()
        trainer.save_model(folder)
        if trainer.is_world_process_zero():
            read = GPT2LMHeadModel.from_pretrained(folder)
            assert [type(module) for module in read.modules()] == classes
            assert weights_of(read) == weights_of(model)
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    kinds = ",".join(emulation.ledger().kinds())
    bits = emulation.ledger().bits
    emulation.remove()
    assert [type(module) for module in model.modules()] == classes
    print(
        f"rank {dist.get_rank()}: {recipe}, loss {losses[0]:.3f} to {losses[-1]:.3f}, weights "
        f"{weights_of(model)}, {bits:.2f} bits of {kinds}\n",
        end="",
        flush=True,
    )
