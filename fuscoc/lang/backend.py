"""``backend cuda`` is a promise: it is kept or refused when the spec is checked."""

from __future__ import annotations

from fuscoc.lang import ast
from fuscoc.lang.checked import CheckedShuffle
from fuscoc.lang.scope import Scope


def check_backend(dispatch: ast.Dispatch, checked: CheckedShuffle, scope: Scope) -> None:
    """Report a shuffle that demands CUDA kernels where the backend has none."""
    if checked.policy.backend != "cuda":
        return
    from fuscoc.codegen.cuda_shuffle import check_cuda
    from fuscoc.codegen.cuda_types import Unsupported

    try:
        check_cuda(checked)
    except Unsupported as reason:
        choices = (each for each in dispatch.options if isinstance(each, ast.Choice))
        scope.sink.report(
            "FSC071",
            next(choice.span for choice in choices if choice.knob == "backend"),
            f"not yet supported: `backend cuda` for `{checked.name}`",
            notes=[str(reason)],
            help="leave it out: `backend auto` takes CUDA where it can, and Triton elsewhere",
        )
