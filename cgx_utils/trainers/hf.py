"""Hugging Face Trainer: compressed gradients, and a Monitor as a callback.

from cgx_utils.trainers.hf import MonitorCallback, compress

trainer = Trainer(model, args, train_dataset=data, callbacks=[MonitorCallback(every=100)])
compress(trainer, bits=4)
trainer.train()
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cgx_utils.monitor import Monitor
from cgx_utils.monitor.monitor import Sink
from cgx_utils.owner import find_owner
from cgx_utils.state import CGXState
from cgx_utils.trainers import settings

try:
    from transformers import Trainer, TrainerCallback
except ModuleNotFoundError as error:
    raise ImportError(
        f"cgx_utils.trainers.hf needs transformers ({error}): pip install transformers accelerate"
    ) from error


def compress(trainer: Trainer, state: CGXState | None = None, **config: Any) -> CGXState:
    """Trains with compressed gradients; on all ranks, before trainer.train(). Returns the state.

    state: a CGXState; None: a new one with these settings (bits=4, bucket_size=512, ...).

    As `cgx_utils.trainers.accelerate.compress` of the trainer's Accelerator, with its errors.
    Checkpoints have a file cgx_state_RANK.pt for each rank, from which a resumed training goes on.
    They are found as OUTPUT_DIR/checkpoint-STEP; elsewhere a warning says that none is there.
    """
    from cgx_utils.trainers import accelerate

    if not isinstance(trainer, Trainer):
        raise TypeError(f"compress of a {type(trainer).__name__}; allowed: a transformers.Trainer")
    state = accelerate.compress(trainer.accelerator, state, **config)
    trainer.add_callback(_Checkpoints(state))
    return state


class _Checkpoints(TrainerCallback):
    """The state in the trainer's checkpoints."""

    def __init__(self, state: CGXState):
        self._state = state

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        settings.save(self._state, _folder(args, state), args.process_index)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step > 0:
            rank, ranks = args.process_index, args.world_size
            settings.load(self._state, _folder(args, state), rank, ranks)


def _folder(args: Any, state: Any) -> Path:
    return Path(args.output_dir, f"checkpoint-{state.global_step}")


class MonitorCallback(TrainerCallback):
    """A `cgx_utils.Monitor` while `Trainer.train` runs. every, sinks: of Monitor.

    `monitor` is the Monitor, None before the training. RuntimeError where the model is not in
    DistributedDataParallel, ValueError where it has no CGXState.
    """

    def __init__(self, every: int = 100, sinks: Iterable[Sink] | Sink | None = None):
        self.monitor: Monitor | None = None
        self._every, self._sinks = every, sinks

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        owner = find_owner(object(), model.parameters())
        if owner is None:
            raise RuntimeError(
                "MonitorCallback: the model is not in DistributedDataParallel; start several "
                "processes, as by torchrun, and call compress(trainer)"
            )
        self.monitor = Monitor(owner, self._every, self._sinks)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.monitor is not None:
            self.monitor.close()
