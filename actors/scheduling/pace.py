"""How long the waiting room takes to let in so much work, learned from how long it took.

Plain numbers: time comes in as an argument. Knows no order among those who wait.
"""

from actors.scheduling.guests import Guest

MEMORY = 0.9
PACE_SEEN = 4
"""So many have to have waited and gone in before their pace is believed more than the prediction."""


class Pace:
    """Seconds until so much has been let in: predicted at first, then as fast as it went."""

    def __init__(self) -> None:
        self._seen = 0
        self._elapsed_s = 0.0
        self._elapsed_charge = 0.0
        self._let_in = 0
        self._last_at: float | None = None
        self.usual_charge = 0.0
        """Of one that is let in, smoothed; and the work that was predicted for it, in seconds of the device."""
        self.usual_work_s = 0.0

    @property
    def known(self) -> bool:
        """Whether enough has been seen."""
        return self._seen >= PACE_SEEN

    def count(self, guest: Guest, now: float) -> None:
        """It has been let in. Only one that had to wait tells how fast the room is, whatever holds it up."""
        self._let_in += 1
        weight = max(1 - MEMORY, 1 / self._let_in)
        self.usual_work_s += weight * (guest.work_s - self.usual_work_s)
        self.usual_charge += weight * (guest.charge - self.usual_charge)
        if guest.told is not None and guest.told[0] > 0 and self._last_at is not None:
            self._seen += 1
            self._elapsed_s = MEMORY * self._elapsed_s + (now - max(self._last_at, guest.since))
            self._elapsed_charge = MEMORY * self._elapsed_charge + guest.charge
        self._last_at = now

    def interrupt(self) -> None:
        """For a while nobody was let in, which says nothing of how fast the room is otherwise."""
        self._last_at = None

    def wait_s(self, charge: float, work_s: float) -> float:
        """Until that charge has been let in, for which `work_s` is predicted."""
        return charge * self._elapsed_s / self._elapsed_charge if self.known else work_s
