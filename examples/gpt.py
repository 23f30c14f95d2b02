"""The GPT of the examples, which is torch_cgx/workloads/gpt.py."""

from torch_cgx.workloads.gpt import GPT as GPT
from torch_cgx.workloads.gpt import Attention as Attention
from torch_cgx.workloads.gpt import Block as Block
from torch_cgx.workloads.gpt import GPTConfig as GPTConfig
