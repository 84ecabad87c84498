"""From the settings to the limits of one socket. Knows which number goes where, and nothing of who keeps to them."""

from actors.config import Config
from actors.connection_limits import ConnectionLimits
from actors.reaper import Patience

AT_ONCE_S = 5.0
"""A client that was silent may send as many messages at once as it may in so many seconds."""


def connection_limits(config: Config) -> ConnectionLimits:
    return ConnectionLimits(
        lanes=config.max_lanes,
        running=config.max_running_per_socket,
        messages_per_s=config.max_messages_per_s,
        messages_at_once=max(1, round(AT_ONCE_S * config.max_messages_per_s)),
    )


def patience(config: Config) -> Patience:
    return Patience(
        socket_idle_s=config.socket_idle_s,
        socket_age_s=config.socket_age_s,
        reader_stalled_s=config.reader_patience_s,
    )
