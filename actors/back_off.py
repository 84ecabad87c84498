"""How long to wait before what has failed is started again. Knows no actor and no clock."""

import math

CALM_S = 60.0
"""What has stood so long starts anew at once."""
FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0


class BackOff:
    """No delay at first; then one that doubles with every failure that follows another within CALM_S."""

    def __init__(self) -> None:
        self._failed_at = -math.inf
        self._delay_s = 0.0

    def next_delay_s(self, now: float) -> float:
        """It has failed `now`, in seconds of any clock: how many seconds to wait before it is started again."""
        calm = now - self._failed_at > CALM_S
        delay_s = 0.0 if calm else self._delay_s
        self._failed_at = now
        self._delay_s = min(max(2 * delay_s, FIRST_DELAY_S), LONGEST_DELAY_S)
        return delay_s
