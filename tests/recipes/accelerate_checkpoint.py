"""Two ranks: accelerator.save_state and load_state keep each rank's residuals."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import Accelerator

from cgx_utils import CGXState
from cgx_utils.trainers.accelerate import compress

accelerator = Accelerator(cpu=True)
rank = accelerator.process_index
state = CGXState(config={"bits": 2}, error_feedback=True)
assert compress(accelerator, state) is state
torch.manual_seed(1)
module = torch.nn.Linear(64, 64)
model = accelerator.prepare(module)


def step(number: int) -> torch.Tensor:
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(10 * number + rank))
    module.weight.grad = None
    accelerator.backward(model(x).square().mean())
    assert module.weight.grad is not None
    return module.weight.grad.clone()


step(0)
accelerator.save_state(sys.argv[1])
accelerator.wait_for_everyone()
saved = torch.load(Path(sys.argv[1], f"cgx_state_{rank}.pt"), weights_only=True)
assert saved["error_feedback"]["residuals"]["weight"].abs().max() > 0
expected = step(1)
assert not torch.equal(step(1), expected)  # the residual has changed
accelerator.load_state(sys.argv[1])
assert torch.equal(step(1), expected)
print(f"rank {rank}: restored\n", end="", flush=True)
accelerator.free_memory()
accelerator.end_training()
