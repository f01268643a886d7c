"""The CUDA headers, with other constants than theirs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fuscoc_runtime.kernels.cuda import INCLUDE


def headers(constants: Mapping[str, int]) -> dict[str, str]:
    """The text of every header by its name; ``constants`` have these values instead."""
    texts = {path.name: path.read_text() for path in INCLUDE.glob("*.cuh")}
    for name, value in constants.items():
        (header,) = (each for each in texts if f" {name} = " in texts[each])
        texts[header] = re.sub(rf"(constexpr \w+ {name} =) [^;]+;", rf"\1 {value};", texts[header])
    return texts
