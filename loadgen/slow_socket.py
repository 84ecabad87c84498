"""A TCP socket for which the system holds next to nothing, so that a server soon feels that nobody reads.

Knows addresses and the size of a buffer. Knows nothing of what goes over it.
"""

import asyncio
import socket

BUFFER = 4096
"""Bytes."""


async def slow_socket(host: str, port: int) -> socket.socket:
    """Connected to the first address that answers. Raises `OSError`.

    Its buffer is small before it connects: made smaller later, it would be less than half of what the other side was
    promised at first, which then sends only now and then (RFC 9293, 3.8.6.2.1), however fast it is read.
    """
    loop = asyncio.get_running_loop()
    failed: OSError | None = None
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        opening = socket.socket(family, kind, protocol)
        try:
            opening.setblocking(False)
            opening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
            await loop.sock_connect(opening, address)
        except OSError as error:
            opening.close()
            failed = error
        except BaseException:
            opening.close()
            raise
        else:
            return opening
    raise failed or OSError(f"{host} has no address")
