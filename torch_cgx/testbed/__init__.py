"""Hosts made of network namespaces, joined by links of a chosen rate: `torch_cgx.testbed.bed`. The
command `cgx link` runs a training script on them.
"""
