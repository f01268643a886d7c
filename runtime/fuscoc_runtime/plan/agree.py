"""When one rank fails, all ranks raise its error instead of waiting for it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.comm.requests import AllGather, Request
from fuscoc_runtime.errors import FuscoRuntimeError, from_json, to_json


def error_size(error: FuscoRuntimeError | None) -> int:
    """Bytes of the error on the wire; 0 means that all is well."""
    return len(_encode(error)) if error is not None else 0


def agree(error: FuscoRuntimeError | None, device: torch.device) -> Generator[Request, Any, None]:
    """Collective: returns if no rank has an error; else all raise that of the lowest rank."""
    sizes = yield AllGather(torch.tensor([error_size(error)], device=device))
    yield from raise_together(error, sizes.flatten(), device)


def raise_together(
    error: FuscoRuntimeError | None, sizes: Tensor, device: torch.device
) -> Generator[Request, Any, None]:
    """Raise the error of the lowest failing rank, given every rank's ``error_size``."""
    bytes_of_rank: list[int] = sizes.tolist()
    if not any(bytes_of_rank):
        return
    text = torch.zeros(max(bytes_of_rank), dtype=torch.uint8, device=device)
    if error is not None:
        encoded = torch.frombuffer(bytearray(_encode(error)), dtype=torch.uint8)
        text[: len(encoded)] = encoded.to(device)
    texts = yield AllGather(text)
    rank, size = next((rank, size) for rank, size in enumerate(bytes_of_rank) if size)
    raise from_json(bytes(texts[rank, :size].tolist()).decode())


def _encode(error: FuscoRuntimeError) -> bytes:
    return to_json(error).encode()
