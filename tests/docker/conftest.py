"""The image that the tests of docker/ look at: built once, which takes minutes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.docker.image import Image, built, missing


@pytest.fixture(scope="session")
def demo() -> Iterator[Image]:
    """The image of the target demo, of CGX_TEST_DOCKER_WHEEL if this is set."""
    reason = missing()
    if reason is not None:
        if os.environ.get("CGX_TEST_DOCKER") == "1":
            pytest.fail(f"CGX_TEST_DOCKER=1, but images cannot be built here: {reason}")
        pytest.skip(f"images are not built: {reason}")
    with built("demo", os.environ.get("CGX_TEST_DOCKER_WHEEL")) as image:
        yield image
