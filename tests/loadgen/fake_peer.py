"""In place of a peer: chat completions on `--port`, in a process of its own, and what may go wrong with one.

`ROTA_FAKE_PEER` says what does: "" nothing, "dies" before it is ready, "loads" for ever, "breaks" off every answer,
"interrupts" whoever started it when it is asked, "clings" to life with a child that does the same. It holds the named
pipe `ROTA_FAKE_PEER_LIVES` open while it lives, and so does its child.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys

from tests.loadgen.chat_server import Answer, Body, ChatServer, answer


async def break_off(to: Answer, request: Body) -> None:
    to.begin()
    to.text("a")
    to.writer.close()


async def interrupt(to: Answer, request: Body) -> None:
    to.begin()
    os.kill(os.getppid(), signal.SIGINT)
    await to.reader.read()


async def serve(port: int, ill: str) -> None:
    scripted = ChatServer({"breaks": break_off, "interrupts": interrupt}.get(ill, answer))
    # Not ready at first, so that it must be asked again.
    scripted.health = [503, 200] if ill != "loads" else [503]
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", port)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    args, _ = parser.parse_known_args()
    ill = os.environ.get("ROTA_FAKE_PEER", "")
    if lives := os.environ.get("ROTA_FAKE_PEER_LIVES"):
        os.set_inheritable(os.open(lives, os.O_WRONLY), True)
    if ill == "dies":
        sys.exit("Loading.\nNo such model.")
    if ill == "clings":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pause = "import signal\nwhile True: signal.pause()"
        subprocess.Popen([sys.executable, "-c", pause], close_fds=False)
    asyncio.run(serve(args.port, ill))


if __name__ == "__main__":
    main()
