"""What vLLM calls in each of its processes, before it looks for DeepEP."""

from __future__ import annotations

import os

NAME = "fuscoc"


def vllm() -> None:
    """Serve vLLM's DeepEP backends, if ``VLLM_PLUGINS`` names ``fuscoc``: vLLM calls the plug-ins
    of all that is installed when it names none, and this takes the place of another package.

    Raises:
        ImportError: ``deep_ep`` has been imported already.
    """
    if NAME in os.environ.get("VLLM_PLUGINS", "").split(","):
        from fuscoc_runtime.deep_ep import install  # with torch, and only now

        install()
