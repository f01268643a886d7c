"""What DeepEP has and this module has not, said when it is asked for."""

from __future__ import annotations

import torch

from fuscoc_runtime.errors import AdapterError


def refusal(problem: str) -> AdapterError:
    """An error that says what was asked for, and why there is no such thing here."""
    return AdapterError("deep_ep", problem)


def refuse(**options: tuple[object, object, str]) -> None:
    """Refuse options by name unless they have their default: (given, default, why not).

    Raises:
        AdapterError: names the first option that was given.
    """
    for name, (given, default, reason) in options.items():
        if given is not default and given != default:
            raise refusal(f"{name}={given!r} is not supported: {reason}")


def is_capturing() -> bool:
    """Whether a CUDA graph captures what the current stream is given."""
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return started and torch.cuda.is_current_stream_capturing()


def refuse_capture(calls: str) -> None:
    """Refuse calls whose host waits where a CUDA graph captures them."""
    if is_capturing():
        raise refusal(f"{calls} wait for counts, so a CUDA graph cannot capture them")
