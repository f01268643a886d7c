"""What every rank makes by itself, and all go on with or none."""

from __future__ import annotations

from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.errors import FuscoRuntimeError, PreparationError


def agree_on(
    members: Membership, made: object, lacks: str = "no memory for larger slabs or windows"
) -> None:
    """Raise on all ranks if one has made an error instead of what it should: it ``lacks`` that.
    Collective over ``members``.

    Raises:
        FuscoRuntimeError: this rank's own error; PreparationError: that of the lowest other one.
    """
    failed = isinstance(made, FuscoRuntimeError)
    said = members.meet("window allocation", int(failed))
    if isinstance(made, FuscoRuntimeError):
        raise made
    for peer, has_failed in enumerate(said):
        if has_failed:
            raise PreparationError(peer, lacks)
