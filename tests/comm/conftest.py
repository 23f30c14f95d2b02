"""What the tests of the MPI communicator share."""

from __future__ import annotations

import pytest

from tests.comm.mpi_mock import MockMpi


@pytest.fixture
def mock() -> MockMpi:
    return MockMpi()
