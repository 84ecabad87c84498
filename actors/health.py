"""Whether rota is alive, ready, and with what: what `/healthz`, `/readyz` and `/v1/models` answer from.

Written by the engine, read by the server. Knows no HTTP.
"""

from protocol.messages import ModelReady


class Health:
    """The engine's state as outsiders see it. `reason` says in one sentence why it is not ready."""

    def __init__(self, started_unix: float) -> None:
        self.started_unix = started_unix
        self.ready = False
        self.reason = "The model is being loaded."
        self.draining = False
        self.model: ModelReady | None = None

    def serving(self, model: ModelReady) -> None:
        """The worker is loaded and a real step has run."""
        self.model = model
        self.ready = True
        self.reason = ""

    def down(self, reason: str) -> None:
        """There is no worker just now. The model stays known: its name does not change when the worker restarts."""
        self.ready = False
        self.reason = reason

    def drain(self) -> None:
        """Nothing new is accepted any more; there is no way back."""
        self.draining = True

    @property
    def accepting(self) -> bool:
        return self.ready and not self.draining

    @property
    def explanation(self) -> str:
        """Why it is not ready; "" when it is."""
        return "The server is shutting down." if self.draining else self.reason
