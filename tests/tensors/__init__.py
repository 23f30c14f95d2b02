"""Tests of csrc/tensors and of torch.ops.torch_cgx."""
