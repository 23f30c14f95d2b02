"""Compressed gradients in the trainers that people use, in one line each:

    from cgx_utils.trainers.lightning import CGXStrategy
    trainer = lightning.Trainer(strategy=CGXStrategy(bits=4))

    from cgx_utils.trainers.accelerate import compress
    compress(accelerator, bits=4)               # before accelerator.prepare(model)

    from cgx_utils.trainers.hf import compress
    compress(trainer, bits=4)                   # before trainer.train()

    from cgx_utils.trainers.torchft import DistributedDataParallel, ProcessGroupCGX
    manager = torchft.Manager(pg=ProcessGroupCGX(), ...)
    model = DistributedDataParallel(manager, model, bits=4)

Each module imports its library, and only that one; a missing one is an ImportError that says what
to install. Nothing here is imported by `cgx_utils` itself.
"""
