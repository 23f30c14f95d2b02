"""Run by gdb: prints the engine's functions on the stack, outermost first, at each breakpoint of
WAY_BREAKS (separated by semicolons): a line for each different stack. Lambdas have the name of the
function that holds them; templates are left out.
"""

import os
import re

import gdb

stacks = set()


class Stack(gdb.Breakpoint):
    def stop(self):
        names = []
        frame = gdb.newest_frame()
        while frame is not None:
            name = (frame.name() or "").replace("(anonymous namespace)::", "")
            found = re.match(r"(?:std::_Function_handler<.*?, )?cgx::([\w:]+)\(", name)
            if found:
                names.insert(0, found[1])
            frame = frame.older()
        stacks.add(" ".join(names))
        return False


def on_library(event):
    if "torch_cgx/_C" in event.new_objfile.filename:
        gdb.events.new_objfile.disconnect(on_library)
        for place in os.environ["WAY_BREAKS"].split(";"):
            Stack(place)


gdb.execute("set pagination off")
gdb.events.new_objfile.connect(on_library)
gdb.execute("run")
for stack in sorted(stacks):
    print("STACK", stack)
