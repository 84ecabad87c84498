"""The wire between a client and a server, which can be cut. Knows bytes, and nothing of what they say."""

import asyncio
import contextlib

from tests.end_to_end.server import Server


class Line:
    """The wire between a browser and a server, which can be cut. Whoever connects to it is connected through."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._whole = True
        self._writers: set[asyncio.StreamWriter] = set()
        self._listening: asyncio.Server | None = None
        self.http = ""

    def cut(self) -> None:
        """Break every connection without a word, and every new one."""
        self._whole = False
        for writer in self._writers:
            writer.transport.abort()

    def mend(self) -> None:
        """New connections can be made."""
        self._whole = True

    async def __aenter__(self) -> "Line":
        self._listening = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.http = f"http://127.0.0.1:{self._listening.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listening is not None
        self._listening.close()
        self.cut()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._whole:
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        self._writers |= {writer, far_writer}
        await asyncio.gather(self._pass_on(reader, far_writer), self._pass_on(far_reader, writer))
        self._writers -= {writer, far_writer}

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(2**16):
                writer.write(data)
                await writer.drain()
        writer.close()
