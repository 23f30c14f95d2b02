"""Lightning: a strategy that trains with compressed gradients, and a Monitor as a callback.

import lightning
from cgx_utils.trainers.lightning import CGXStrategy, MonitorCallback

trainer = lightning.Trainer(strategy=CGXStrategy(bits=4), callbacks=[MonitorCallback(every=100)])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from cgx_utils.hook import cgx_hook
from cgx_utils.monitor import Monitor, Table
from cgx_utils.monitor.monitor import Sink
from cgx_utils.state import CGXState
from cgx_utils.trainers.settings import for_rank, state_of
from torch_cgx import _config

try:
    from lightning.pytorch import Callback
    from lightning.pytorch.strategies import DDPStrategy
    from lightning.pytorch.trainer.states import TrainerFn, TrainerStatus
except ModuleNotFoundError as error:
    raise ImportError(
        f"cgx_utils.trainers.lightning needs Lightning ({error}): pip install lightning"
    ) from error

_KEY = "cgx"  # in a checkpoint


class CGXStrategy(DDPStrategy):
    """Lightning's DDPStrategy over the backend cgx, with `cgx_hook` on CPU and CUDA.

    state: a CGXState, for rules by name, error feedback, bits per layer. Or its settings as
        keywords: CGXStrategy(bits=4, bucket_size=512).
    process_group_backend: a backend that has cgx, as "cpu:cgx,cuda:nccl" for CPU tensors.
    options: all other arguments of DDPStrategy, and through it of DistributedDataParallel.

    Checkpoints have the state_dict()s of all ranks, by rank, under "cgx": with error feedback rank
    0 gathers the residuals of all ranks. `Trainer.fit(ckpt_path=...)` restores them, also with
    weights_only=True.

    TypeError and ValueError name a hook beside ours, a backend without cgx, a bad setting.
    """

    def __init__(
        self,
        state: CGXState | None = None,
        *,
        process_group_backend: str = "cgx",
        **options: Any,
    ):
        hooks = [name for name in options if name.startswith("ddp_comm_")]
        if hooks:
            raise TypeError(f"CGXStrategy registers cgx_hook; not allowed: {', '.join(hooks)}")
        if "cgx" not in process_group_backend.replace(":", ",").split(","):
            raise ValueError(
                f"process_group_backend={process_group_backend!r}; allowed: cgx, or backends by "
                "device with cgx for one of them, as cpu:cgx,cuda:nccl"
            )
        config = {name: options.pop(name) for name in _config.KEYS if name in options}
        self.cgx_state = state_of(state, config)
        self._ended: dict[str, Any] | None = None  # its state_dict() when the training ended
        super().__init__(process_group_backend=process_group_backend, **options)

    def configure_ddp(self) -> None:
        super().configure_ddp()
        assert isinstance(self.model, DistributedDataParallel)
        self.model.register_comm_hook(self.cgx_state, cgx_hook)
        self._ended = None

    def teardown(self) -> None:
        # Afterwards there is no DDP instance that knows the names of residuals, but checkpoints.
        module = self.lightning_module
        interrupted = module is None or module.trainer.state.status == TrainerStatus.INTERRUPTED
        if isinstance(self.model, DistributedDataParallel) and not interrupted:
            self._ended = self.cgx_state.state_dict()
        super().teardown()

    def save_checkpoint(self, checkpoint: dict[str, Any], *args: Any, **options: Any) -> None:
        """Called by Lightning on all ranks; rank 0 writes."""
        states: list[Any] = [None] * dist.get_world_size()
        mine = self.cgx_state.state_dict() if self._ended is None else self._ended
        dist.all_gather_object(states, mine)
        checkpoint[_KEY] = states
        super().save_checkpoint(checkpoint, *args, **options)

    def load_checkpoint(self, *args: Any, **options: Any) -> dict[str, Any]:
        checkpoint: dict[str, Any] = super().load_checkpoint(*args, **options)
        module = self.lightning_module
        if module is not None and module.trainer.state.fn == TrainerFn.FITTING:
            states = checkpoint.get(_KEY)  # of another strategy: none
            if states:
                saved = for_rank(states, self.global_rank, self.world_size)
                self.cgx_state.load_state_dict(saved)
        return checkpoint


class MonitorCallback(Callback):
    """A `cgx_utils.Monitor` while `Trainer.fit` runs.

    every, sinks: of Monitor. Numbers of its records also go to the trainer's loggers, as
    cgx/bytes_sent and so on. `monitor` is the Monitor, None before the training.

    TypeError where the strategy is not DDP; ValueError where it has no CGXState.
    """

    def __init__(self, every: int = 100, sinks: Iterable[Sink] | Sink | None = None):
        self.monitor: Monitor | None = None
        self._every, self._sinks = every, sinks

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        model = trainer.strategy.model
        if not isinstance(model, DistributedDataParallel):
            raise TypeError(
                f"MonitorCallback with the strategy {type(trainer.strategy).__name__}; allowed: "
                "CGXStrategy, or a DDPStrategy with cgx_hook"
            )

        def log(record: Mapping[str, Any]) -> None:
            numbers = {
                f"cgx/{key}": float(value)
                for key, value in record.items()
                if isinstance(value, int | float) and key not in _NOT_LOGGED
            }
            for logger in trainer.loggers:
                logger.log_metrics(numbers, step=trainer.global_step)

        sinks = [Table()] if self._sinks is None else self._sinks
        listed = [sinks] if callable(sinks) else list(sinks)
        self.monitor = Monitor(model, self._every, [*listed, log])

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        if self.monitor is not None:
            self.monitor.close()


_NOT_LOGGED = ("version", "step", "steps", "rank", "world_size")
