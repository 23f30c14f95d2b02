"""Hosts made of network namespaces, which tests and benchmarks share: see `testbed.bed`."""
