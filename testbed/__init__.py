"""What tests and benchmarks share: hosts made of network namespaces, see `testbed.bed`; commands
that end in time, see `testbed.deadline`.
"""
