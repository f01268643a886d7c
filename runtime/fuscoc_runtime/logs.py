"""Logging under ``fuscoc``; ``FUSCOC_LOG=debug`` or ``info`` prints it.

``info``: what was opened and closed. ``debug``: every call. No message waits for a device.
"""

from __future__ import annotations

import logging
import os

VARIABLE = "FUSCOC_LOG"
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}


def configure() -> None:
    """Print what FUSCOC_LOG asks for to standard error; without it, logging is left alone.

    Raises:
        ValueError: FUSCOC_LOG is no level.
    """
    wanted = os.environ.get(VARIABLE, "").lower()
    if not wanted:
        return
    if wanted not in LEVELS:
        raise ValueError(f"{VARIABLE} is `{wanted}`; it must be one of {', '.join(LEVELS)}")
    logger = logging.getLogger("fuscoc")
    logger.setLevel(LEVELS[wanted])
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
        logger.addHandler(handler)
