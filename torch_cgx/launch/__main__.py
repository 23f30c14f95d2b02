"""`python -m torch_cgx.launch`."""

from __future__ import annotations

import sys

from torch_cgx.launch._command import main

sys.exit(main())
