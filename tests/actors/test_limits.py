"""The settings reach whoever keeps to them."""

from pathlib import Path

import pytest

from actors.config import Config, ConfigError, load
from actors.connection_limits import ConnectionLimits
from actors.limits import connection_limits, patience
from actors.reaper import Patience
from actors.server import ServerSettings


def test_the_defaults_are_those_of_who_keeps_to_them() -> None:
    assert connection_limits(Config()) == ConnectionLimits()
    assert patience(Config()) == Patience()
    assert Config().max_message_bytes == ServerSettings().max_frame_bytes


def test_every_setting_is_passed_on() -> None:
    limits = connection_limits(Config(max_lanes=3, max_running_per_socket=4, max_messages_per_s=0.5))
    assert (limits.lanes, limits.running, limits.messages_per_s, limits.messages_at_once) == (3, 4, 0.5, 2)
    waits = patience(Config(socket_idle_s=1.0, socket_age_s=2.0, reader_patience_s=3.0))
    assert (waits.socket_idle_s, waits.socket_age_s, waits.reader_stalled_s) == (1.0, 2.0, 3.0)


def test_a_message_has_room_for_a_request(tmp_path: Path) -> None:
    assert load({"max_message": "4KiB"}, {}, tmp_path).max_message_bytes == 4096
    with pytest.raises(ConfigError, match="--max-message"):
        load({"max_message": "4095"}, {}, tmp_path)
    with pytest.raises(ConfigError, match="size"):
        load({"max_message": "much"}, {}, tmp_path)
