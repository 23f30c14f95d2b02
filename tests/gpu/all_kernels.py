"""Runs every kernel on small data, for a tool that watches: python -m tests.gpu.all_kernels

Two ranks on one GPU. Memory comes straight from the driver, so that a byte too far is seen.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from datetime import timedelta

LIMIT = 400.0  # seconds
SETTINGS = {
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    "CGX_INNER_COMMUNICATOR_TYPE": "GLOO",
    "CGX_CUDA_BACKEND": "GLOO",
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
}


def codecs() -> None:
    """Encode and decode, by warps and by thread blocks, and with long buckets."""
    import torch

    from tests.codec import gpu_cases as cases
    from torch_cgx.codecs import Half, MaxMin, Rotated, Trellis

    for dtype in cases.DTYPES:
        for shift, n in ((0, 4096 + 7), (3, 5000)):
            x = cases.values(n, dtype)
            for bucket_size in (5, 512, 2049):
                for bits, rounding in ((1, "nearest"), (3, "stochastic"), (8, "nearest")):
                    codec = MaxMin(bits, bucket_size, rounding, 9, bits == 3)
                    cases.check(codec, x, shift)
                    codec.roundtrip(x.to("cuda"))  # in memory of exactly its size
            for codec in (Half("bf16"), Rotated(4), Rotated(7, 256), Trellis(3), Trellis(2, 4096)):
                cases.check(codec, x, shift)
            for codec in cases.FORMATS:
                cases.check(codec, x, shift)
    torch.cuda.synchronize()


def bounded() -> None:
    """Blocks of every map, and those of cuda_float_compress."""
    from tests.bounded import gpu_cases

    gpu_cases.check_types()
    gpu_cases.check_shapes()


def reductions(rank: int, port: int) -> None:
    """Sums, finite, and the others on messages."""
    import torch
    import torch.distributed as dist

    import torch_cgx
    from tests.backend.test_all_reduce import data

    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    options = torch_cgx.Options(inner_reduction="SRA", nonfinite="raise")
    dist.init_process_group(
        "cgx",
        store=store,
        rank=rank,
        world_size=2,
        pg_options=options,
        timeout=timedelta(seconds=LIMIT),
    )
    for dtype in (torch.float32, torch.bfloat16):
        for config in (
            {"bits": 4, "bucket_size": 64},
            {"bits": 4, "bucket_size": 5000},
            {"codec": "rotated", "bits": 4},
            {"codec": "trellis", "bits": 2},
            {"codec": "float", "bits": 8, "exponent": 4, "mantissa": 3},
            {"codec": "block", "bits": 4, "format": "mxfp4"},
        ):
            for n in (400, 10_007):
                x = data(rank, n, dtype).to("cuda")
                torch_cgx.all_reduce(x, config=config)
                inputs = [data(r, n, dtype) for r in range(2)]
                wanted = torch_cgx.simulate(inputs, config, "sra").result
                assert torch.equal(x.cpu(), wanted), (dtype, config, n)
    torch.cuda.synchronize()
    dist.destroy_process_group()


def main() -> int:
    os.environ.update(SETTINGS)  # before torch is imported
    if len(sys.argv) == 2:
        reductions(1, int(sys.argv[1]))
        return 0
    import torch.distributed as dist

    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    command = [sys.executable, "-m", "tests.gpu.all_kernels", str(server.port)]
    other = subprocess.Popen(command)
    try:
        codecs()
        if importlib.util.find_spec("zstandard") is not None:
            bounded()
        reductions(0, server.port)
        return abs(other.wait(LIMIT))
    finally:
        other.kill()


if __name__ == "__main__":
    sys.exit(main())
