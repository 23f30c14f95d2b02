"""One rank makes the mistakes that cgx_utils.trainers.torchft names."""

from __future__ import annotations

import os
from typing import Any

import torch
import torchft
from refusing import refused
from torchft.coordination import LighthouseServer

import torch_cgx
from cgx_utils import AdaptiveBits, CGXState
from cgx_utils.trainers.torchft import DistributedDataParallel, ProcessGroupCGX


def manager_of(group: Any) -> torchft.Manager:
    manager = torchft.Manager(
        pg=group,
        min_replica_size=1,
        load_state_dict=lambda saved: None,
        state_dict=dict,
        use_async_quorum=False,
        lighthouse_addr=lighthouse.address(),
        hostname="127.0.0.1",
    )
    manager.start_quorum()
    return manager


lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=100)
refused(TypeError, "options of a ProcessGroupCGX are of type dict; allowed", ProcessGroupCGX, {})
net = torch.nn.Linear(64, 64)
os.environ["CGX_COMPRESSION_BUCKET_SIZE"] = "some"
refused(ValueError, "CGX_COMPRESSION_BUCKET_SIZE", ProcessGroupCGX)
del os.environ["CGX_COMPRESSION_BUCKET_SIZE"]
group = ProcessGroupCGX(torch_cgx.Options(bits=4))
good = manager_of(group)
for name, state in (
    ("error_feedback", CGXState(error_feedback=True)),
    ("adaptive", CGXState(adaptive=AdaptiveBits(average_bits=4.0))),
    ("schedule", CGXState(schedule={0: 32, 5: 4})),
    ("group", CGXState(group=group.parent)),
):
    refused(
        ValueError, f"a CGXState with {name}; allowed", DistributedDataParallel, good, net, state
    )
refused(TypeError, "both a state and bits", DistributedDataParallel, good, net, CGXState(), bits=4)
failing = CGXState(layer_filter=lambda name, parameter: bool(1 / 0))
model = DistributedDataParallel(good, net, failing)
refused(ZeroDivisionError, "division by zero", model(torch.ones(2, 64)).sum().backward)
good.start_quorum()  # drops the failed step
model = DistributedDataParallel(good, net, bits=4)  # of the same module, beside `failing`'s
model(torch.ones(2, 64)).sum().backward()
assert torch_cgx.stats(group.parent)["compressed_calls"] == 1
assert good.errored() is None
good.shutdown()

other = manager_of(torchft.ProcessGroupGloo())
model = DistributedDataParallel(other, net, bits=4)
refused(TypeError, r"needed: .*ProcessGroupCGX", model(torch.ones(2, 64)).sum().backward)
other.shutdown()
lighthouse.shutdown()
print("all named")
