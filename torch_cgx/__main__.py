"""`python -m torch_cgx`, the same as the command `cgx`."""

from __future__ import annotations

import sys

from torch_cgx.cli import main

if __name__ == "__main__":
    sys.exit(main())
