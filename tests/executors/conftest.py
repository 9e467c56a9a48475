"""What several tests of the webgpu executor share."""

import pytest

from candlewick.executors import ExecutorUnavailable, create


@pytest.fixture(scope="module")
def host():
    """The GPU of this machine, or the system's software driver."""
    try:
        return create("webgpu").host
    except ExecutorUnavailable as e:
        pytest.skip(f"webgpu executor: {e}")
