"""The text of the examples, which is torch_cgx/workloads/corpus.py."""

from torch_cgx.workloads.corpus import EXCLUDED as EXCLUDED
from torch_cgx.workloads.corpus import VOCABULARY as VOCABULARY
from torch_cgx.workloads.corpus import library_files as library_files
from torch_cgx.workloads.corpus import load as load
from torch_cgx.workloads.corpus import unigram_entropy as unigram_entropy
from torch_cgx.workloads.corpus import windows as windows
