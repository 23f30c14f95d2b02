"""Everything here is marked `gpu`, and skipped where there is none (CGX_TEST_GPU: ranks.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu import ranks

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if HERE in item.path.parents]
    if not ours:
        return
    why = ranks.missing()
    if why is not None and ranks.WANTED:
        raise pytest.UsageError(f"CGX_TEST_GPU={ranks.WANTED}, but {why}")
    for item in ours:
        item.add_marker(pytest.mark.gpu)
        if why is not None:
            item.add_marker(pytest.mark.skip(reason=why))
