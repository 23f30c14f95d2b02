"""benchmarks/report/tables.py, and the tables of README.md and docs against the results in the
tree.
"""

from __future__ import annotations

import pytest

from benchmarks._command import rate_text
from benchmarks.report import losses, speed, tables

MACHINE = {
    "repeats": 5,
    "ranks": 2,
    "cpu": "a CPU",
    "cores": 2,
    "simd": "avx2",
    "torch": "2.13.0",
    "threads": 1,
}


def _document(sizes):
    rows = []
    for size in sizes:
        rows.append({"bytes": size, "method": "gloo fp32", "seconds": size / 1e9, "speedup": 1.0})
        other = {"method": "cgx shm 4 bit", "seconds": size / 2e9, "speedup": 2.04}
        rows.append({"bytes": size, **other, "wire_bytes": size * 0.129})
    for row in rows:
        row.setdefault("wire_bytes", row["bytes"])
    return {"machine": MACHINE, "rows": rows}


def test_table_has_a_column_per_size_and_a_row_per_method():
    text = speed.allreduce_table(_document([64, 4096, 1 << 20, 1 << 26]))
    head, rule, base, row = text.split("\n\n")[1].splitlines()
    assert head == "| fp32 vector of | 4 KiB | 1 MiB | 64 MiB | bytes |"
    assert rule == "|---|---|---|---|---|"
    assert base == "| gloo fp32: time | 4 us | 1.05 ms | 67.1 ms | |"
    assert row == "| cgx shm 4 bit | 2.04 | 2.04 | 2.04 | 0.129 |"


def test_sizes_are_spread_and_the_largest_is_there():
    sizes = [4**k for k in range(1, 14)]
    assert speed.choose(sizes) == [1 << 12, 1 << 16, 1 << 20, 1 << 22, 1 << 26]
    assert speed.choose([8, 4]) == [4, 8]


def _run(sizes, **changes):
    return {"hosts": 2, "ranks_per_host": 1, "rate": "1gbit", **_document(sizes), **changes}


def test_between_hosts_the_largest_size_of_other_runs_is_a_column():
    first, other = _run([4096, 1 << 16, 1 << 20]), _run([64, 1 << 26], hosts=4, rate=None)
    text = speed.hosts_table({"machine": MACHINE, "runs": [first, other]})
    caption, rows = text.split("\n\n")
    assert "2 hosts x 1 rank, links of 1 Gbit/s (a CPU, 2 cores," in caption.replace("\n", " ")
    head, rule, base, row = rows.splitlines()
    assert head == "| fp32 vector of | 64 KiB | 1 MiB | 64 MiB, 4 hosts, any speed |"
    assert rule == "|---|---|---|---|"
    assert base == "| gloo fp32: time | 66 us | 1.05 ms | 67.1 ms |"
    assert row == "| cgx shm 4 bit | 2.04 | 2.04 | 2.04 |"
    # A method or a size that a run lacks is an empty cell.
    other["rows"] = [r for r in other["rows"] if r["method"] == "gloo fp32"] + [
        {**other["rows"][-1], "method": "cgx 2 bit"}
    ]
    text = speed.hosts_table({"machine": MACHINE, "runs": [first, other]})
    assert text.splitlines()[-1] == "| cgx shm 4 bit | 2.04 | 2.04 |  |"


def _training(speedup, sent):
    rows = [
        {"method": "gloo fp32", "step_seconds": 0.2, "speedup": 1.0, "link_bytes_per_step": 4e6},
        {"method": "cgx, 4 bits", "step_seconds": 0.2 / speedup, "speedup": speedup}
        | {"link_bytes_per_step": sent},
    ]
    return [{**row, "gradient_bytes": 4_000_000} for row in rows]


def test_training_has_two_columns_per_layout():
    groups = [
        {"ranks_per_host": 1, "rows": _training(2.0, 5e5)},
        {"ranks_per_host": 2, "rows": _training(4.0, 6e5)},
    ]
    document = {"machine": {**MACHINE, "runs": 3, "steps": 60}, "groups": groups}
    document |= {"hosts": 2, "rate": "200mbit", "options": ""}
    caption, rows = speed.training_table(document).split("\n\n")
    assert "1.00 million parameters, links of 200 Mbit/s: time per step, median of 3" in caption
    assert rows.splitlines() == [
        "| time per step | 2 hosts x 1 rank | bytes/step | 2 hosts x 2 ranks | bytes/step |",
        "|---|---|---|---|---|",
        "| gloo fp32 | 200 ms (1.00x) | 4.00 MB | 200 ms (1.00x) | 4.00 MB |",
        "| cgx, 4 bits | 100 ms (2.00x) | 0.50 MB | 50 ms (4.00x) | 0.60 MB |",
    ]
    with pytest.raises(ValueError, match="no rows"):
        speed.training_table({**document, "groups": []})


def test_training_tells_what_is_allowed_where_that_was_measured():
    rows = [{**row, "model_ms": 80.0, "ratio": 1.25} for row in _training(2.0, 5e5)]
    document = {"machine": {**MACHINE, "runs": 3, "steps": 60}, "options": "--width 9"}
    document |= {"groups": [{"ranks_per_host": 1, "rows": rows}], "hosts": 2, "rate": "200mbit"}
    caption, lines = speed.training_table(document).split("\n\n")
    assert "`allowed`: what computing alone takes" in caption
    assert lines.splitlines()[0] == "| time per step | 2 hosts x 1 rank | bytes/step | allowed |"
    assert lines.splitlines()[-1] == "| cgx, 4 bits | 100 ms (2.00x) | 0.50 MB | 80 ms (1.25x) |"


def test_sharded_training_has_a_row_per_method():
    rows = [
        {"method": "gloo fp32", "val_loss": 2.0, "percent_over_base": 0.0}
        | {"percent_over_base_by_seed": [0.0, 0.0], "link_bytes_per_step": 8e6},
        {"method": "cgx", "val_loss": 2.004, "percent_over_base": 0.2}
        | {"percent_over_base_by_seed": [0.5, -0.1], "link_bytes_per_step": 1.6e6},
    ]
    document = {"machine": {**MACHINE, "seeds": 2}, "rows": rows, "parameters": 837_888}
    document |= {"hosts": 2, "ranks_per_host": 1, "steps": 300}
    caption, lines = losses.fsdp_table(document).split("\n\n")
    assert "0.84 million parameters, 2 hosts x 1 rank, 300 steps" in caption.replace("\n", " ")
    assert lines.splitlines() == [
        "|  | val loss | over fp32 | by seed | bytes/step | fewer |",
        "|---|---|---|---|---|---|",
        "| gloo fp32 | 2.0000 | +0.00 % | +0.00 %, +0.00 % | 8.00 MB | 1.0x |",
        "| cgx | 2.0040 | +0.20 % | +0.50 %, -0.10 % | 1.60 MB | 5.0x |",
    ]


def test_local_steps_have_a_row_per_method():
    rows = [
        {"method": "DDP", "loss": 2.5, "faster_to_base_loss": [1.0], "steps": [100]}
        | {"link_bytes_per_step": 4e6},
        {"method": "DiLoCo", "loss": 2.0, "faster_to_base_loss": [6.0, None], "steps": [400, 500]}
        | {"link_bytes_per_step": 4e4},
        {"method": "slow", "loss": 2.6, "faster_to_base_loss": [None], "steps": [9]}
        | {"link_bytes_per_step": 4e6},
    ]
    document = {"machine": {**MACHINE, "seconds_each": 60, "runs": 2}, "rows": rows, "hosts": 2}
    document |= {"rate": "50mbit", "runs": [{"parameters": 1e6}]}
    caption, lines = losses.diloco_table(document).split("\n\n")
    assert "links of 50 Mbit/s, 60 seconds each, 2 seeds" in caption.replace("\n", " ")
    assert lines.splitlines()[2:] == [
        "| DDP | 2.500 | 1.0x as fast | 100 | 4.000 MB | 1.0x |",
        "| DiLoCo | 2.000 | 6.0x as fast | 400, 500 | 0.040 MB | 100.0x |",
        "| slow | 2.600 | not reached | 9 | 4.000 MB | 1.0x |",
    ]


def _trained(codec, bits, feedback, change, seeds=3, **more):
    row = {"codec": codec, "bits": bits, "feedback": feedback, "average": False}
    row |= {"loss_change": change / 100, "loss_change_interval": 0.004, "bytes_ratio": 32 / bits}
    return row | {"seeds": list(range(seeds))} | more


def _accuracy_document(accuracy=None, **more):
    runs = [
        {"bits": 32, "seed": seed, "final_val_loss": 2.0 + 0.01 * seed, "accuracy": accuracy}
        | {"world_size": 2, "steps": 300, "parameters": 829_696}
        for seed in range(3)
    ]
    rows = [
        _trained("", 32, False, 0.0, **more) | {"val_loss": 2.01, "accuracy": accuracy},
        _trained("maxmin", 1, False, 30.0, **more),
        _trained("maxmin", 8, False, 0.1, **more),
        _trained("trellis", 1, True, 2.5, 5, **more),
    ]
    return {"rows": rows, "runs": runs}


def test_training_has_a_row_for_each_codec_and_feedback():
    caption, lines = losses.accuracy_table(_accuracy_document()).split("\n\n")
    caption = caption.replace("\n", " ")
    assert "(validation loss 2.010) in percent of the validation loss" in caption
    assert "2 ranks, 300 steps, 0.83 million parameters" in caption
    assert caption.endswith("own seeds: 0.50.")
    assert lines.splitlines() == [
        "|  | 1 bit | 8 bits |",
        "|---|---|---|",
        "| `maxmin` | +30.0 ± 0.4 | +0.10 ± 0.40 |",
        "| `trellis`, error feedback | +2.50 ± 0.40 (5 seeds) |  |",
        "| fewer bytes, at most | 32.0x | 4.0x |",
    ]


def test_accuracy_is_in_points_where_there_is_one():
    more = {"accuracy_change": -0.25, "accuracy_interval": 0.1}
    caption, lines = losses.accuracy_table(_accuracy_document(0.98, **more)).split("\n\n")
    assert "(accuracy 98.00 %) in points of accuracy" in caption.replace("\n", " ")
    assert "| `maxmin` | -0.25 ± 0.10 | -0.25 ± 0.10 |" in lines


def test_errors_have_a_row_for_each_data_and_codec():
    rows = [
        {"data": "gpt", "codec": codec, "bits": bits, "nmse": 0.5**bits, "bits_per_value": bits}
        for codec in ("rotated", "rotated unbiased")
        for bits in range(1, 9)
    ]
    _, lines = losses.errors_table({"rows": rows}).split("\n\n")
    assert lines.splitlines()[2:] == [
        "| GPT's gradients, `rotated` | 0.5 (1.00) | 0.25 (2.00) | 0.125 (3.00) | 0.0625 (4.00) |"
    ]


def _summary_inputs():
    def rows(names, seconds):
        return [
            {"bytes": 1 << 26, "method": name, "seconds": seconds / speedup, "speedup": speedup}
            | {"relative_error": error}
            for name, speedup, error in names
        ]

    local = [("gloo fp32", 1.0, 3e-8), ("cgx shm exact", 5.0, 3e-8), ("cgx shm 4 bit", 4.0, 0.117)]
    between = [("gloo fp32", 1.0, 3e-8), ("fp16 hook", 1.7, 3.1e-4), ("cgx 4 bit", 7.6, 0.1173)]
    run = {"hosts": 2, "ranks_per_host": 1, "rate": "1gbit", "rows": rows(between, 0.7)}
    slower = {**run, "rate": "10gbit", "rows": rows(between, 0.1)}
    steps = {"ranks_per_host": 1, "rows": _training(2.0, 5e5)}
    return (
        {"machine": MACHINE, "rows": rows(local, 0.1)},
        {"machine": MACHINE, "runs": [run, slower]},
        {"machine": MACHINE, "hosts": 2, "rate": "200mbit", "groups": [steps]},
    )


def test_summary_has_a_column_per_link_and_names_what_was_not_run():
    caption, rows = speed.summary_table(*_summary_inputs()).split("\n\n")
    assert "all-reduce of 64 MiB of fp32" in caption and "over 2 ranks" in caption
    assert rows.splitlines() == [
        "|  | 2 ranks, one host | 2 hosts, 1 Gbit/s | 2 hosts, 10 Gbit/s | "
        "training step, 2 hosts, 200 Mbit/s | error |",
        "|---|---|---|---|---|---|",
        "| gloo fp32: time | 100 ms | 700 ms | 100 ms | 200 ms | 0 |",
        "| fp16 hook over Gloo |  | 1.70x | 1.70x |  | 0.031 % |",
        "| cgx exact | 5.00x |  |  |  |  |",
        "| cgx 16 bits |  |  |  |  |  |",
        "| cgx 8 bits |  |  |  |  |  |",
        "| cgx 4 bits | 4.00x | 7.60x | 7.60x | 2.00x | 12 % |",
        "| cgx 4 bits, `rotated` |  |  |  |  |  |",
    ]


def test_summary_needs_a_size_that_all_runs_have():
    local, hosts, training = _summary_inputs()
    for row in local["rows"]:
        row["bytes"] = 4096
    with pytest.raises(ValueError, match="no size in common"):
        speed.summary_table(local, hosts, training)


def test_rates_in_words():
    texts = map(rate_text, ["200mbit", "1gbit", "2.5gbit", "800bit", None, "1mbps"])
    assert list(texts) == [
        "200 Mbit/s", "1 Gbit/s", "2.5 Gbit/s", "800 bit/s", "any speed", "1mbps"
    ]  # fmt: skip


def test_marks_must_be_there_once():
    text = "a\n<!-- x -->\nold\n<!-- /x -->\nb\n"
    new = "a\n<!-- x -->\nnew\n<!-- /x -->\nb\n"
    assert tables.insert(text, "x", "new\n") == new
    for bad in ("no marks", text + text, text.replace("x", "y")):
        with pytest.raises(ValueError, match="once each"):
            tables.insert(bad, "x", "new\n")


def test_nothing_to_compare_with_is_an_error():
    document = _document([4096])
    document["rows"] = document["rows"][1:]
    with pytest.raises(ValueError, match="gloo fp32"):
        speed.allreduce_table(document)


def test_the_readme_shows_the_results_in_the_tree():
    readme = tables.README.read_text()
    assert tables.update(readme) == readme, "run python -m benchmarks.report.tables"


def test_the_targets_show_the_results_in_the_tree():
    page = tables.PERFORMANCE.read_text()
    assert tables.update_performance(page) == page, "run python -m benchmarks.report.tables"


def test_the_page_on_bits_shows_the_results_in_the_tree():
    page = tables.CHOOSING.read_text()
    assert tables.update_choosing(page) == page, "run python -m benchmarks.report.tables"


def test_the_pages_on_bdi_and_bounded_show_the_results_in_the_tree():
    for file, make in ((tables.BDI, tables.update_bdi), (tables.BOUNDED, tables.update_bounded)):
        page = file.read_text()
        assert make(page) == page, "run python -m benchmarks.report.tables"


def test_results_that_are_not_there_are_named(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    assert tables.main(["--check"]) == 1
    said = capsys.readouterr().out
    assert "allreduce.json is not there; run python -m benchmarks all --commit-results" in said
