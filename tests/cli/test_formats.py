"""`cgx formats`: the list, the picture, and what is refused."""

import argparse
import json
import math
import sys

import pytest

from torch_cgx import emulate
from torch_cgx.cli import formats
from torch_cgx.cli.errors import CliError
from torch_cgx.emulate import _picture


def _run(*words):
    parser = argparse.ArgumentParser()
    formats.add_arguments(parser)
    return formats.run(parser.parse_args([*map(str, words)]))


def test_the_list_has_a_line_for_each_preset(capsys):
    assert _run("list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == "name bits range step at 1 NaN and Inf where used".split()
    body = lines[1 : lines.index("")]
    assert [line.split()[0] for line in body] == list(emulate.presets())
    found = {line.split()[0]: " ".join(line.split()[1:]) for line in body}
    assert found["e4m3fn"].startswith("8 0.001953 to 448 0.125 NaN, Inf saturates OCP FP8")
    assert found["mxfp4"].startswith("4.25 0.5 to 6 x s 0.25 both NaN, all of its block")
    assert found["fp16"].startswith("16 5.96e-08 to 65504 0.000977 NaN, Inf IEEE 754")


def test_json_has_the_numbers(capsys):
    assert _run("list", "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    e5m2, fnuz, scale = rows["e5m2"], rows["e4m3fnuz"], rows["e8m0"]
    assert (e5m2["least"], e5m2["largest"], e5m2["step"]) == (2**-16, 57344, 0.25)
    assert (e5m2["nan"], e5m2["infinite"], e5m2["zero"]) == ("NaN", "Inf", "-0")
    assert (fnuz["least"], fnuz["largest"], fnuz["zero"]) == (2**-10, 240, "0")
    assert (fnuz["infinite"], fnuz["beyond"]) == ("NaN", "NaN")
    assert (scale["least"], scale["largest"], scale["step"]) == (2**-127, 2.0**127, 1)
    assert (rows["nvfp4"]["bits"], rows["nvfp4"]["nan"]) == (4.5, "NaN, all of the tensor")
    assert rows["fp8_block128"]["step"] == pytest.approx(32 / 448)


def test_errors_of_a_picture():
    """Uniform values between two numbers that are `step` apart: step / sqrt(12)."""
    found = _picture.errors(emulate.preset("e5m2"))
    assert (min(found), max(found)) == (-18, 17)
    # Of x from 1 to 2 with steps of 1/4: the mean of 1 / x^2 is 1/2.
    assert found[0] == pytest.approx(0.25 / math.sqrt(24), rel=0.02)
    assert found[3] == found[0] and found[-18] == 1 and found[16] == math.inf
    blocks = _picture.errors(emulate.preset("mxint8"))
    assert blocks[-10] == 1 and 0.002 < blocks[1] < 0.008


def test_a_picture(capsys, tmp_path):
    for name in ("a.png", "b.svg"):
        assert _run("plot", "e4m3fn", "MXFP4", "-o", tmp_path / name) == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "b.svg").read_text()
    assert capsys.readouterr().out == f"wrote {tmp_path / 'a.png'}\nwrote {tmp_path / 'b.svg'}\n"


@pytest.mark.parametrize(
    "words, text",
    [
        (["e9m9"], "^format is 'e9m9', allowed: fp16, bf16, "),
        (["e5m2", "-o", "/none/a.png"], "^cannot write /none/a.png: No such file"),
        (["e5m2", "-o", "a.none"], "Format 'none' is not supported"),
    ],
)
def test_errors_are_one_line(words, text):
    with pytest.raises(CliError, match=text) as error:
        _run("plot", *words)
    assert "\n" not in str(error.value)


def test_a_picture_without_matplotlib_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(CliError, match="needs matplotlib: pip install matplotlib"):
        _run("plot", "e5m2", "-o", tmp_path / "a.png")
