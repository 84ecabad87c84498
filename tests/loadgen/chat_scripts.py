"""Scripts for `scripted_server` that tests of `rota chat` share.

Knows the shapes of events. Knows nothing of who asks.
"""

from websockets.sync.server import ServerConnection

from tests.loadgen.scripted_server import Body, Script, answer, refusal, say


class Turns:
    """A script for each request in turn; those after the last are answered."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = list(scripts)

    def __call__(self, connection: ServerConnection, request: Body) -> None:
        script = self._scripts.pop(0) if self._scripts else answer
        script(connection, request)


def refuses(code: str, message: str, **more: object) -> Script:
    body = refusal(code, message)
    body["error"].update(more)
    return lambda connection, request: say(connection, body)
