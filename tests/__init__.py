"""Tests of torch_cgx; the tree mirrors the source tree."""
