"""No test asserts wall time, not even through hypothesis' default deadline."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "no-deadline", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("no-deadline")
