"""Compressed gradients and compressed saved tensors at once: a Monitor's record has both."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cgx_utils import CGXState, Monitor, cgx_hook
from cgx_utils.monitor import Table
from tests.distributed import run_pooled
from torch_cgx import activations

WIDTH = 64
FEW = {"codec": "maxmin", "bits": 4}


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * WIDTH, WIDTH))
    )


def _batch(rank: int, step: int) -> torch.Tensor:
    return torch.randn(128, WIDTH, generator=torch.Generator().manual_seed(10 * step + rank))


def _together(rank: int, world_size: int, few: bool) -> dict[str, Any]:
    """3 steps on a rank; a record for each of the first two, and of the last one from close()."""
    model = _model()
    if few:
        activations.convert(model, activations=3)
    ddp = DistributedDataParallel(model)
    state = CGXState(bits=4 if few else 32)
    ddp.register_comm_hook(state, cgx_hook)
    saving = activations.compress_saved(FEW, model=model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    records: list[Any] = []
    own, losses, table = [], [], io.StringIO()
    with Monitor(ddp, 1, [records.append, Table(table)], saved=saving if few else None) as monitor:
        for step in range(3):
            optimizer.zero_grad()
            if few:
                with saving:
                    output = ddp(_batch(rank, step))
            else:
                output = ddp(_batch(rank, step))
            loss = output.square().mean()
            loss.backward()
            optimizer.step()
            own.append((saving.bytes_saved, saving.bytes_kept))
            losses.append(float(loss))
    return {
        "parameters": [p.detach().clone() for p in model.parameters()],
        "losses": losses,
        "records": records,
        "own": own,
        "last": monitor.last,
        "table": table.getvalue(),
    }


def test_bytes_on_the_wire_and_bytes_kept_are_in_one_record() -> None:
    first, second = run_pooled(_together, 2, True)
    exact = run_pooled(_together, 2, False)[0]
    for a, b in zip(first["parameters"], second["parameters"], strict=True):
        assert torch.equal(a, b)
    for answer in (first, second):
        assert torch.tensor(answer["losses"]).isfinite().all()
        assert answer["last"]["kept_bytes"] == answer["own"][-1][1]  # each rank has its own
    assert [(r["saved_bytes"], r["kept_bytes"]) for r in first["records"]] == first["own"]
    last = first["records"][-1]
    # The batch and the mask's product are saved by linear layers, the mask by dropout; codes of
    # the 3-bit GELU are integers that are packed already.
    inputs, mask = 4 * 128 * WIDTH + 4 * 128 * 4 * WIDTH, 4 * 128 * 4 * WIDTH
    assert last["saved_bytes"] == inputs + mask
    codes = 128 * WIDTH // 2 + 128 * 4 * WIDTH // 2
    statistics = 8 * (128 * WIDTH + 128 * 4 * WIDTH) // 256
    assert codes < last["kept_bytes"] <= codes + statistics + 128 * 4 * WIDTH // 8 + 256
    assert last["kept_bytes"] < last["saved_bytes"] / 5
    assert 0 < last["bytes_sent"] < exact["records"][-1]["bytes_sent"] / 5
    assert set(last["saved_errors"]) == {"0", "2", "3"}
    assert "kept MB" in first["table"].splitlines()[0]
    cells = first["table"].splitlines()[-1].split()
    assert f"{last['bytes_sent'] / 1e6:.3f}" in cells and f"{last['kept_bytes'] / 1e6:.3f}" in cells


def test_without_saved_a_record_has_none_and_the_table_no_column() -> None:
    answer = run_pooled(_together, 2, False)[0]
    for record in answer["records"]:
        assert record["saved_bytes"] is None and record["kept_bytes"] is None
    assert "kept" not in answer["table"]


def _counted(rank: int, world_size: int, every: int) -> list[Any]:
    model = _model()
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(CGXState(), cgx_hook)
    handle = activations.compress(model, FEW)
    records: list[Any] = []
    with Monitor(ddp, every, records.append, saved=handle):
        for step in range(5):
            # Another number of rows in each step.
            ddp(_batch(rank, step)[: 16 * (step + 1)]).square().mean().backward()
    return [(r["step"], r["saved_bytes"], r["kept_bytes"], len(r["saved_errors"])) for r in records]


@pytest.mark.parametrize("every", [2, 5, 100])
def test_a_record_has_the_bytes_of_its_last_step(every: int) -> None:
    """Also where most steps are passed by, and where close() makes it and no errors are known."""
    (records, _), (all_steps, _) = (run_pooled(_counted, 2, one) for one in (every, 1))
    found = {step: (saved, kept) for step, saved, kept, _ in records}
    wanted = {step: (saved, kept) for step, saved, kept, _ in all_steps}
    ends = [*range(every, 6, every), *([5] if 5 % every else [])]
    assert found == {step: wanted[step] for step in ends}
    assert wanted[5][0] == 5 * wanted[1][0] > 5 * wanted[1][1] > 0
    assert all(bool(errors) == (step % every == 0) for step, _, _, errors in records)


def _of_group(rank: int, world_size: int) -> tuple[int, int]:
    model = _model()
    handle = activations.compress(model, FEW)
    with Monitor(None, 1, lambda record: None, saved=handle) as monitor:
        model(_batch(rank, 0)).square().mean().backward()
        monitor.step()
    assert monitor.last is not None
    return monitor.last["saved_bytes"], monitor.last["kept_bytes"]


def test_of_a_group() -> None:
    for saved, kept in run_pooled(_of_group, 2):
        assert 0 < kept < saved / 5
