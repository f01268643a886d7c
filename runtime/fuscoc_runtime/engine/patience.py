"""How long a rank's host lets its kernels wait for other ranks."""

from __future__ import annotations

import time

from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.engine.waits import Waits

LOOK_SECONDS = 1.0
"""Waits that are shorter are no reason to ask whether the others are alive."""

GRACE_SECONDS = 1.0
"""What a rank has done before it ended may still be on its way. Less than the grace of a host that
waits for its kernels: these know whom they have waited for."""


class Patience:
    """Stops the waits of kernels that have been waiting for the members' time-out, or still are a
    second after a rank of this host has ended. To be ``watch``-ed.

    The time counts from when a kernel has begun: other work that the user's stream does before it
    is nobody's delay.
    """

    def __init__(self, waits: Waits, members: Membership) -> None:
        self._waits, self._members = waits, members
        self._since: dict[tuple[str, int], float] = {}
        self._bereft: float | None = None  # since when a rank has been known to have ended

    def look(self) -> None:
        """Stop what is in vain, if anything is."""
        now = time.monotonic()
        with self._waits.lock:
            under_way = self._waits.under_way()
            self._since = {each: self._since.get(each, now) for each in under_way}
            if not self._waits.are_stopped and self._is_in_vain(now):
                self._waits.stop()

    def _is_in_vain(self, now: float) -> bool:
        waited = now - min(self._since.values(), default=now)
        if waited < LOOK_SECONDS:
            return False
        if self._bereft is None and self._members.liveness.someone_ended():
            self._bereft = now
        if self._bereft is not None and now - self._bereft >= GRACE_SECONDS:
            return True
        return waited > self._members.timeout
