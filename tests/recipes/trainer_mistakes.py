"""Two ranks make the mistakes that the integrations name."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs
from refusing import refused

from cgx_utils import CGXState
from cgx_utils.trainers import hf
from cgx_utils.trainers.accelerate import compress
from cgx_utils.trainers.lightning import CGXStrategy, MonitorCallback

hook = DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.FP16)
refused(
    ValueError,
    "has the communication hook fp16; allowed: none",
    compress,
    Accelerator(cpu=True, kwargs_handlers=[hook]),
    bits=4,
)
accelerator = Accelerator(cpu=True)
refused(TypeError, "compress of a int; allowed: an Accelerator", compress, 3)
refused(TypeError, "both a state and bits; allowed", compress, accelerator, CGXState(), bits=4)
refused(TypeError, "state=4; allowed: a CGXState, None", compress, accelerator, 4)
refused(TypeError, "bits='many': expected an int", compress, accelerator, bits="many")
compress(accelerator, bits=4)
accelerator.prepare(torch.nn.Linear(64, 64))
refused(RuntimeError, "wraps a second model", accelerator.prepare, torch.nn.Linear(64, 64))
late = Accelerator(cpu=True)
late.prepare(torch.nn.Linear(64, 64))
refused(RuntimeError, "comes before accelerator.prepare", compress, late, bits=4)
refused(TypeError, "compress of a Accelerator; allowed: a transformers.Trainer", hf.compress, late)

refused(TypeError, "not allowed: ddp_comm_hook", CGXStrategy, ddp_comm_hook=print)
refused(
    ValueError,
    "process_group_backend='gloo'; allowed: cgx",
    CGXStrategy,
    process_group_backend="gloo",
)
refused(TypeError, "both a state and bits", CGXStrategy, CGXState(), bits=4)


class Other:
    class strategy:
        model = torch.nn.Linear(2, 2)


refused(
    TypeError,
    "MonitorCallback with the strategy type; allowed: CGXStrategy",
    MonitorCallback().on_train_start,
    Other,
    None,
)
print(f"rank {accelerator.process_index}: all named\n", end="", flush=True)
accelerator.end_training()
