"""The communication hook of DistributedDataParallel and its per-layer policy.

    from cgx_utils import CGXState, cgx_hook

    model = DistributedDataParallel(model)
    model.register_comm_hook(CGXState(), cgx_hook)

`CGXState` decides which gradients are compressed; `cgx_hook` reduces them.
"""

from cgx_utils.hook import cgx_hook
from cgx_utils.state import CGXState

__all__ = ["CGXState", "cgx_hook"]
