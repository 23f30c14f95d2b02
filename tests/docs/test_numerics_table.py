"""docs/numerics.md: ratios and errors of its table against the codec and the reducers."""

from __future__ import annotations

import pytest
import torch

import torch_cgx
from tests.docs.documents import ROOT, marked, table

ROWS = table(marked((ROOT / "docs" / "numerics.md").read_text(), "errors"))


def _config(row):
    return {"bits": int(row["bits"]), "bucket_size": int(row["bucket size"])}


def test_every_width_of_interest_is_there():
    assert {int(row["bits"]) for row in ROWS} >= {1, 2, 3, 4, 6, 8} and len(ROWS) >= 8


def test_ratios_are_the_codecs():
    n = 1 << 20
    for row in ROWS:
        codec = torch_cgx.codecs.MaxMin(**_config(row))
        single, half = float(row["ratio, fp32"]), float(row["ratio, fp16/bf16"])
        assert single == pytest.approx(4 * n / codec.encoded_bytes(n), abs=0.005)
        assert half == pytest.approx(2 * n / codec.encoded_bytes(n, torch.float16), abs=0.005)


def test_errors_are_those_of_gaussian_gradients():
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(1 << 16, generator=generator) for _ in range(8)]
    columns = {"oneshot": "error, one-shot", "sra": "error, scatter-reduce-all-gather"}
    for row in ROWS:
        for algorithm, column in columns.items():
            found = torch_cgx.simulate(inputs, _config(row), algorithm).error["relative_l2"]
            assert float(row[column]) == pytest.approx(found, rel=0.02), (row, algorithm)
