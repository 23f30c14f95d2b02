"""What training scripts use: DDP's communication hook, FSDP2's collectives, DiLoCo.

    from cgx_utils import CGXState, cgx_hook

    model = DistributedDataParallel(model)
    model.register_comm_hook(CGXState(), cgx_hook)

`CGXState` decides which gradients are compressed; `cgx_hook` reduces them. `AdaptiveBits` has it
choose the bits of each layer under a budget. `cgx_utils.fsdp.compress` is for `fully_shard`
modules, `cgx_utils.pipelining.compress` for the stages of a pipeline, `DiLoCo` for many local
steps. `Monitor` shows what compression does in a training.
"""

from cgx_utils.adaptive import AdaptiveBits
from cgx_utils.diloco import DiLoCo
from cgx_utils.hook import cgx_hook
from cgx_utils.monitor import Monitor
from cgx_utils.state import CGXState

__all__ = ["AdaptiveBits", "CGXState", "DiLoCo", "Monitor", "cgx_hook"]
