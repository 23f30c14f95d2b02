"""Benchmarks of torch_cgx; each measures its peers in the same run."""
