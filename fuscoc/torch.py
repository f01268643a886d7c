"""``fused_shuffle`` for specs: compiled when it is first needed, into a cache."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fuscoc_runtime.face.decorator import Decorator, around
from fuscoc_runtime.face.shuffle import Shuffle
from fuscoc_runtime.files import cache_folder
from fuscoc_runtime.manifest.artifact import MANIFEST, Artifact, load_artifact


def fused_shuffle(
    spec: Artifact | str | Path,
    name: str | None = None,
    *,
    constants: Mapping[str, int] | None = None,
    cache_dir: str | Path | None = None,
    **options: Any,
) -> Decorator:
    """Dispatch, call the function on the rows that arrive, and combine what it returns.

    ::

        @fused_shuffle("examples/moe.fsc", group=ep_group)
        def experts(x, num_tokens_per_expert):
            return grouped_mlp(x, num_tokens_per_expert)

        y = experts(hidden_states, topk_idx=topk_idx, topk_weights=topk_weights)

    What the decorated function takes, and what the one below is given, is said at
    ``fuscoc_runtime.face.decorator.fused_shuffle``.

    Args:
        spec: the path of a ``.fsc`` file, its text, the directory of an artifact, or an artifact.
        name: which shuffle, if there are several.
        constants: replaces constants of the spec, like ``fuscoc compile -D``.
        cache_dir: where compiled specs are kept; default: ``$FUSCOC_CACHE_DIR``, else ``fuscoc`` in
            ``$XDG_CACHE_HOME`` or ``~/.cache``. Processes may share it; what is damaged there is
            compiled again.
        options: those of ``fuscoc_runtime.Shuffle``.

    Raises TypeError without a spec, and when the shuffle is opened (by the first call):
        CompileError: the spec has errors.
        TypeError: a constant is no whole number.
        ImportError: a spec was given, and the compiler's packages are not installed.
        ValueError: constants were given for something that is compiled already.
        Whatever ``Shuffle`` raises.
    """

    if callable(spec):
        raise TypeError('fused_shuffle takes a spec first: `@fused_shuffle("my.fsc")`')

    def open_shuffle() -> Shuffle:
        return Shuffle(as_artifact(spec, constants or {}, cache_dir), name, **options)

    return around(open_shuffle)


def as_artifact(
    spec: Artifact | str | Path, constants: Mapping[str, int], cache_dir: str | Path | None = None
) -> Artifact:
    """The artifact that ``spec`` is, or that it is compiled to; see ``fused_shuffle``."""
    if isinstance(spec, Artifact) or _is_directory(spec):
        if constants:
            raise ValueError("constants only change a spec, and this is compiled already")
        return spec if isinstance(spec, Artifact) else load_artifact(spec)
    try:
        from fuscoc.source import as_source, whole_numbers
        from fuscoc.spec_cache import compile_cached

        source = as_source(spec)
        cache = cache_folder() if cache_dir is None else Path(cache_dir)
        return compile_cached(source, whole_numbers(constants), cache)
    except ImportError as error:
        raise ImportError(
            f"{error}; compiling a spec needs what `pip install fuscoc` brings: install it, or "
            "compile elsewhere with `fuscoc compile` and pass the artifact's directory"
        ) from error


def _is_directory(spec: str | Path) -> bool:
    text = isinstance(spec, str) and ("\n" in spec or "{" in spec)
    return not text and (Path(spec).is_dir() or (Path(spec) / MANIFEST).exists())
