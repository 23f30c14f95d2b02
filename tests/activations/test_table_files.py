"""Files of tables, and tables for parameters of functions."""

import contextlib
import math
from pathlib import Path

import numpy as np
import pytest
import torch.nn.functional as F

from tests.activations.few_bit_cases import FEWBIT_GELU
from tools import fit_tables
from torch_cgx.activations.tables import files
from torch_cgx.activations.tables.catalog import CATALOG
from torch_cgx.activations.tables.table import Table


def test_the_shipped_file_is_what_the_tool_makes(fitted):
    assert list(fit_tables.stale(fitted, files.load(files.SHIPPED))) == []
    assert list(fit_tables.stale(fitted, {})) and list(fit_tables.stale({}, fitted))
    moved = {**fitted, ("gelu", 3): FEWBIT_GELU}
    assert [*fit_tables.stale(moved, fitted)] == ["gelu 3: differs by 0.0185"]


@pytest.mark.parametrize("name", CATALOG)
def test_shipped_tables(name):
    for bits in range(1, 5):
        table = files.shipped(name, bits)
        assert (table.name, table.bits, table.parity) == (name, bits, CATALOG[name].parity)
    for bits in (0, 5, True):
        with pytest.raises(ValueError, match=f"bits={bits}; allowed: integers from 1 to 4"):
            files.shipped(name, bits)


def test_tables_in_a_file_keep_every_bit(tmp_path):
    path = tmp_path / "tables.npz"
    files.shipped("gelu", 3).save(path)
    files.shipped("tanh", 2).save(path)
    far = Table((-1e6, 300), (1, 2, 3), name="gelu")
    far.save(path)
    assert files.load(path) == {
        ("gelu", 3): files.shipped("gelu", 3),
        ("tanh", 2): files.shipped("tanh", 2),
        ("gelu", 2): far,
    }
    Table((0,), (1, 2, 3)[:2], name="gelu").save(path)
    again = Table(far.borders, (7, 8, 9), name="gelu")
    again.save(path)
    assert Table.load(path, "gelu", 2) == again
    assert len(files.load(path)) == 4


def test_a_file_has_fewbits_arrays(tmp_path):
    path = tmp_path / "tables.npz"
    files.save(path, [files.shipped("gelu", 3), files.shipped("tanh", 2)])
    with np.load(path) as found:
        assert sorted(found.files) == [
            *("gelu03-borders", "gelu03-levels"),
            *("tanh02-borders", "tanh02-levels", "tanh02-parity", "torch_cgx_version"),
        ]
        borders = found["gelu03-borders"]
        assert (borders.dtype, borders.shape) == (np.float64, (9,))
        assert (borders[0], borders[-1]) == (-100, 100)
        assert found["gelu03-levels"].shape == (8,)


def test_a_file_of_fewbit_is_read(tmp_path):
    path = tmp_path / "fewbit.npz"
    np.savez(
        path,
        **{"gelu03-borders": np.array([-100, *FEWBIT_GELU.borders, 100])},
        **{"gelu03-levels": np.array(FEWBIT_GELU.levels)},
        **{"relu601-borders": np.array([-9, 0, 9]), "relu601-levels": np.array([0.25, 0.75])},
    )
    assert Table.load(path, "relu6", 1) == Table((0,), (0.25, 0.75), name="relu6")
    table = Table.load(path, "gelu", 3)
    assert (table.borders, table.levels) == (FEWBIT_GELU.borders, FEWBIT_GELU.levels)
    with pytest.raises(ValueError, match=r"has no table 'gelu' of 7 bits; it has: gelu 3, relu6 1"):
        Table.load(path, "gelu", 7)


GOOD = {"f01-borders": [-9.0, 0.0, 9.0], "f01-levels": [0.25, 0.75]}


@pytest.mark.parametrize(
    "arrays, text",
    [
        ({"f01-borders": [0.0]}, "f01: 1 borders for 2 levels; allowed: 3, the two ends"),
        ({"f01-borders": [9.0, 0.0, -9.0]}, r"f01: borders\[1\]=0.0 after 9.0"),
        ({"f01-levels": [1.0, math.nan]}, r"f01: levels\[1\]=nan"),
        ({"f01-levels": [[1.0, 2.0]]}, r"f01-levels: shape \(1, 2\), dtype float64; allowed: one"),
        ({"f01-levels": ["a", "b"]}, "f01-levels: shape .*, dtype <U1; allowed: one dimension"),
        ({"f01-parity": [1.0]}, "f01-parity: .*; allowed: one bool"),
        ({"f01-parity": True, "f01-borders": [-9.0, -1.0, 9.0]}, r"borders\[0\]=-1.0; allowed wi"),
        ({"g02-borders": [-9.0, 0.0, 9.0]}, "g02-levels is missing"),
        ({"g02-levels": [1.0, 2.0]}, "g02-borders is missing"),
        (
            {"g02-borders": [-9.0, 0.0, 9.0], "g02-levels": [1.0, 2.0]},
            "g02: 2 levels, which is 1 bits",
        ),
        ({"weights": [1.0]}, "array 'weights'; allowed: names as gelu03-borders"),
        ({"torch_cgx_version": 2}, "tables of version 2; this torch_cgx reads version 1, and FewB"),
        ({"f01-levels": np.array([1, None])}, "not an .npz file of tables"),
    ],
)
def test_wrong_files_are_named_and_stay(tmp_path, arrays, text):
    path = tmp_path / "tables.npz"
    np.savez(path, **{**GOOD, **arrays})
    before = path.read_bytes()
    with pytest.raises(ValueError, match=text) as error:
        files.load(path)
    assert str(path) in str(error.value)
    with pytest.raises(ValueError, match=text):
        FEWBIT_GELU.save(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04broken"])
def test_files_of_other_kinds_are_named(tmp_path, content):
    path = tmp_path / "tables.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="tables.npz: not an .npz file of tables"):
        files.load(path)
    np.save(tmp_path / "one.npy", np.ones(3))
    with pytest.raises(ValueError, match="one.npy: not an .npz file of tables"):
        files.load(tmp_path / "one.npy")
    with pytest.raises(FileNotFoundError):
        files.load(tmp_path / "none")


def test_what_cannot_be_saved_is_named(tmp_path):
    path = tmp_path / "tables.npz"
    with pytest.raises(ValueError, match="a table without a name cannot be saved"):
        FEWBIT_GELU.save(path)
    table = files.shipped("gelu", 3)
    with pytest.raises(ValueError, match="two tables named 'gelu' of 3 bits"):
        files.save(path, [table, table])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name, options, function",
    [
        ("celu", {"alpha": 0.5}, lambda x: F.celu(x, 0.5)),
        ("elu", {"alpha": 0.3}, lambda x: F.elu(x, 0.3)),
        ("elu", {"alpha": -1.5}, lambda x: F.elu(x, -1.5)),
        ("softplus", {"beta": 2.0}, lambda x: F.softplus(x, 2.0)),
        ("softplus", {"beta": 4.0, "threshold": 2.0}, lambda x: F.softplus(x, 4.0, 2.0)),
    ],
)
def test_tables_for_parameters_are_those_of_a_fit(name, options, function):
    table = files.table_for(name, 3, **options)
    assert table is files.table_for(name, 3, **options)
    # The domain is scaled with the borders.
    factor = options.get("alpha", 1.0) if name == "celu" else 1 / options.get("beta", 1.0)
    domain = (-10 * factor, 10 * factor)
    again = Table.fit(function, 3, domain=domain)
    np.testing.assert_allclose(table.borders, again.borders, rtol=0, atol=1e-6)
    np.testing.assert_allclose(table.levels, again.levels, rtol=0, atol=1e-6)
    assert (table.name, table.bits) == (name, 3)


def test_usual_parameters_are_the_shipped_tables():
    for name in CATALOG:
        assert files.table_for(name, 2) == files.shipped(name, 2)
    assert files.table_for("softplus", 2, threshold=1e9) == files.shipped("softplus", 2)
    assert files.table_for("elu", 3, alpha=0.0).levels == (0, 1)


@pytest.mark.parametrize(
    "name, options, text",
    [
        ("celu", {"alpha": 0.0}, r"alpha=0\.0; allowed: positive finite"),
        ("celu", {"alpha": math.inf}, "alpha=inf; allowed: positive"),
        ("elu", {"alpha": math.nan}, "alpha=nan; allowed: finite"),
        ("softplus", {"beta": -1.0}, r"beta=-1\.0; allowed: positive"),
        ("softplus", {"threshold": math.nan}, "threshold=nan; allowed: numbers above -10"),
        ("softplus", {"alpha": 2.0}, "alpha= with 'softplus', which does not have it"),
        ("gelu", {"beta": 2.0}, "beta= with 'gelu', which does not have it"),
    ],
)
def test_wrong_parameters_are_named(name, options, text):
    with pytest.raises(ValueError, match=text):
        files.table_for(name, 3, **options)


def test_damaged_files_and_names_are_value_errors(tmp_path: Path) -> None:
    path = tmp_path / "tables.npz"
    for name in ("é", "gelu\n", "a b", ""):
        with pytest.raises(ValueError, match="cannot be saved"):
            Table((0.0,), (0.0, 1.0), name=name).save(path)
    Table((0.0,), (0.0, 1.0), name="step").save(path)
    whole = path.read_bytes()
    generator = np.random.default_rng(0)
    for _ in range(300):
        forged = bytearray(whole)
        for at in generator.integers(0, len(forged), 4):
            forged[at] = generator.integers(0, 256)
        path.write_bytes(forged)
        with contextlib.suppress(ValueError):
            Table.load(path, "step", 1)
    np.savez(path, torch_cgx_version=np.array([(1, 2)], dtype="i4,i4")[0])
    with pytest.raises(ValueError, match="version"):
        Table.load(path, "step", 1)
