"""What compression does while a model trains: `Monitor` and where its records go.

    from cgx_utils import Monitor

    model.register_comm_hook(state, cgx_hook)
    monitor = Monitor(model, every=100)  # a line every 100 steps on rank 0

A record is a dict of plain values; `records.py` lists its keys. `FormatMonitor` is for a training
that emulates number formats (`torch_cgx.emulate.apply`) without a process group.
"""

from cgx_utils.monitor.format_monitor import FormatMonitor
from cgx_utils.monitor.monitor import Monitor
from cgx_utils.monitor.sinks import Csv, JsonLines, Table, TensorBoard

__all__ = ["Csv", "FormatMonitor", "JsonLines", "Monitor", "Table", "TensorBoard"]
