"""The spec's own words for what generated kernels do, as comments with their lines."""

from __future__ import annotations

import fuscoc
from fuscoc.lang.checked import CheckedShuffle, PackedTarget


def cuda_header(checked: CheckedShuffle) -> tuple[str, ...]:
    """What a CUDA text begins with."""
    source, target = checked.source_file, checked.target
    spans = [*(field.span for field in checked.fields), *(given.span for given in checked.inputs)]
    if isinstance(target, PackedTarget):
        spans.append(target.placement.span)
    spans.append(checked.dispatch_span)
    spans += [checked.combine.span] if checked.combine is not None else []
    lines = sorted({line for span in spans for line in source.lines(span)})
    title = f"// Shuffle `{checked.name}` in {source.plain_name}, by fuscoc {fuscoc.__version__}."
    return (f"{title} Do not edit.", "//", *source.quoted(lines, "//"))


def kernel_words(checked: CheckedShuffle) -> dict[str, list[str]]:
    """What stands above the kernels of a node that move rows, by their role."""
    source = checked.source_file
    spans = dict.fromkeys(("dispatch", "sort"), checked.dispatch_span)
    if checked.combine is not None:
        spans["combine"] = checked.combine.span
    return {role: source.quoted(source.lines(span), "#") for role, span in spans.items()}
