"""Comparison of recipes: the same trainings with each, paired seeds, one table.

    from torch_cgx import emulate

    found = emulate.compare("digits", ["bf16", "mxfp4", "smaq68"], seeds=3, steps=100)
    print(found.table())

`cgx emulate compare` is the same on the command line. The parts:

    task.py, builtin.py, load.py, batches.py   what is trained: a Task, made by a function
    recipes.py                                 with which formats: names, parts, options
    run.py, gradients.py                       one training
    ranks.py, rank.py, wire.py                 the same, shared by processes
    sweep.py, results.py, watch.py             all trainings; those that are done; progress
    fingerprint.py                             what tells a task from another of its name
    comparison.py, student.py, picture.py      what they show
"""

from torch_cgx.emulate.comparison.comparison import Comparison
from torch_cgx.emulate.comparison.load import load
from torch_cgx.emulate.comparison.run import RunError
from torch_cgx.emulate.comparison.sweep import compare
from torch_cgx.emulate.comparison.task import Task

__all__ = ["Comparison", "RunError", "Task", "compare", "load"]
