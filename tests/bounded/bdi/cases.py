"""Cases of the tests of words."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

from tests.bounded.bdi import model as bdi_model
from tests.bounded.bdi.model import Model
from torch_cgx.bounded.bdi import Compression, Config

DTYPES = {"int32": torch.int32, "uint32": torch.uint32, "float32": torch.float32}


def tensor(words: list[int], dtype: str = "uint32") -> torch.Tensor:
    return torch.from_numpy(np.array(words, np.uint32)).view(DTYPES[dtype])


def compression(model: Model) -> Compression:
    return Compression(
        [Config(*config, name=str(i)) for i, config in enumerate(model.configs)],
        model.batch,
        model.immediates,
        model.init,
        model.base,
        model.delta,
        model.stochastic,
        model.zero_mask,
        model.random_bases,
        model.seed,
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[Model, list[int]]:
    dtype = draw(st.sampled_from(bdi_model.DTYPES))
    zero_mask = draw(st.booleans())
    init = draw(st.sampled_from((0, 0, 1, 3, 31)))
    scales = st.integers(0, 31 - init) | st.integers(0, min(4, 31 - init))
    config = st.tuples(
        st.integers(0, 4) | st.just(64),
        st.integers(1, 32) | st.just(32),
        st.integers(0 if zero_mask else 1, 32),
    )
    model = Model(
        tuple(draw(st.lists(config, min_size=1, max_size=4))),
        draw(st.sampled_from((1, 5, 16, 64, 4096))),
        tuple(draw(st.sets(st.integers(0, (1 << 32 - init) - 1) | st.just(0), max_size=3))),
        init,
        draw(st.just(0) | scales),
        draw(st.just(0) | scales),
        draw(st.booleans()),
        zero_mask,
        draw(st.booleans()),
        draw(st.integers(0, 2**64 - 1)),
        dtype,
    )
    # Clusters, which may lie across a border of signs, infinity or the largest word.
    centres = draw(
        st.lists(
            st.integers(0, 2**32 - 1)
            | st.sampled_from((0, 2**31, 0x7F800000, 0xFF800000, 0x7FC00000, 2**32 - 1)),
            min_size=1,
            max_size=3,
        )
    )
    spread = draw(st.sampled_from((0, 3, 200, 70000)))
    word = st.builds(
        lambda centre, offset: (centre + offset) % 2**32,
        st.sampled_from(centres),
        st.integers(-spread, spread),
    )
    return model, draw(st.lists(word | st.just(0), max_size=70))
