import socket
from collections.abc import Iterator

import pytest


@pytest.fixture
def free_port() -> Iterator[int]:
    """A loopback port that is taken, so that nobody else gets it, and on which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A loopback port on which connections are accepted and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]
