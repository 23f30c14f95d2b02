"""How long a training step takes, by link, codec and what computing takes.

A step of DistributedDataParallel hands over bucket k at r_k, while the backward pass goes on; one
link carries the buckets one after another, and what follows waits for the last:

    e_0 = 0,  e_k = max(e_(k-1), r_k) + t_k,  step = e_last + (compute - r_last)

t_k is the time of one all-reduce, of the plan that the engine would make of the bucket
(csrc/reduce/plan/cost.h). It is pipelined in rounds, so work and transfer overlap:

    t = max(wire, work) + min(wire, work) / rounds + exchanges * latency
    wire = bytes that leave a host / rate,  work = encoding, decoding and the kernel's share

Bytes are 2 (H - 1) / H payloads for H hosts (Patarasuk and Yuan 2009; the engine's reducers send as
many) and what frames and acknowledgements add. Encoding happens once for a payload (and once more
for the share of the sum that a host owns, where it scatters), decoding twice.
Where the cores of a host are all computing, work also delays the computation.
"""

from torch_cgx.cost.allreduce import Cost, Payload, Work, all_reduce
from torch_cgx.cost.buckets import Layer, buckets_of
from torch_cgx.cost.speeds import Speed, measure_speed
from torch_cgx.cost.step import Compute, Step, predict

__all__ = [
    "Compute",
    "Cost",
    "Layer",
    "Payload",
    "Speed",
    "Step",
    "Work",
    "all_reduce",
    "buckets_of",
    "measure_speed",
    "predict",
]
