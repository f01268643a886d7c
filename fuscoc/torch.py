"""``fused_shuffle`` for specs, and models on shuffles: compiled when needed, into a cache."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fuscoc_runtime.adapters import megatron
from fuscoc_runtime.adapters.moe import Sizes
from fuscoc_runtime.adapters.transformers import Model, clip_grad_norm_, whole_state_dict
from fuscoc_runtime.adapters.transformers import expert_parallel as spread_experts
from fuscoc_runtime.comm.group import Group
from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.face.decorator import Decorator, around
from fuscoc_runtime.face.shuffle import Shuffle
from fuscoc_runtime.files import cache_folder
from fuscoc_runtime.manifest.artifact import MANIFEST, Artifact, load_artifact

__all__ = [
    "as_artifact",
    "clip_grad_norm_",
    "expert_parallel",
    "fused_shuffle",
    "megatron_dispatchers",
    "whole_state_dict",
]

EXPERTS = """\
shuffle experts {
  const hidden = 1, experts = 1, topk = 1

  index t : tokens
  index k : topk
  index e : experts

  segment token { x : DTYPE[hidden] }

  layout  by_token[t]     of token
  layout  by_expert[e, s] of token  packed(s)

  place   e on rank by block
  route   r(t, k) -> e   = input topk_idx : int64
  weight  w(t, k) : f32  = input topk_weights

  dispatch by_token[t] -> by_expert[r(t, k), *]  dedup(node, rank)
  combine  reverse reduce sum(w)
}
"""
"""What models of experts get. Rows are not padded: grouped GEMMs take groups of any size."""


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


def expert_parallel(
    model: Model,
    group: Group | None = None,
    *,
    replicas: Group | None = None,
    cache_dir: str | Path | None = None,
    **options: Any,
) -> Model:
    """Spread the experts of a Hugging Face model over the ranks of ``group``; collective.

    ::

        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
        fuscoc.torch.expert_parallel(model, group=ep_group, max_sources=8192)
        model = DistributedDataParallel(model.to(device))

    The model is changed in place and returned. Every rank has all of it but for the experts, of
    which it keeps its block, and gives it its own batch, of any size but none. Only what lies
    between a router and the sum of the experts' outputs is replaced. All ranks make the same
    forward passes and the same backward passes.

    - Gradients of experts are those of the mean of the ranks' losses, as DistributedDataParallel
      makes the others; it leaves the experts alone. ``fuscoc.torch.clip_grad_norm_`` clips them by
      the norm of the whole model.
    - ``state_dict()`` holds this rank's experts; ``load_state_dict`` takes that or an ordinary
      checkpoint. ``fuscoc.torch.whole_state_dict(model)`` is that of the whole model, and
      ``save_pretrained``, which is collective, writes it on rank 0.
    - ``generate`` returns, on every rank, when the sequences of all ranks have ended.

    Args:
        model: a ``PreTrainedModel`` with its weights; its experts are one of the classes that
            docs/integrations.md names.
        group: as for ``fuscoc_runtime.Shuffle``.
        replicas: the ranks, one of every group, that hold the same experts as this one; gradients
            of experts are averaged over them, too. A job of more ranks than ``group`` needs it to
            train.
        cache_dir: as for ``fused_shuffle``.
        options: those of ``fuscoc_runtime.Shuffle``, such as ``max_sources``, the most tokens of a
            rank in one forward pass.

    Raises:
        AdapterError: transformers is missing or another one; a block of experts is not known; they
            do not divide by the ranks, are quantised, tied, or spread already.
        ImportError: the compiler's packages are not installed.
        Whatever ``Shuffle`` raises.
    """

    def open_shuffle(sizes: Sizes) -> Shuffle:
        return _shuffle_of_experts(sizes, group, cache_dir, options)

    return spread_experts(model, group, replicas, open_shuffle)


def megatron_dispatchers(
    model: Model, *, cache_dir: str | Path | None = None, **options: Any
) -> Model:
    """Let the ``MoELayer``s of a Megatron-Core model dispatch with fuscoc; collective.

    ::

        model = GPTModel(config, ...)
        fuscoc.torch.megatron_dispatchers(model)

    The model, whose weights are on their device, is changed in place and returned. Layers keep
    their routers, experts, shared experts and process groups; ``config`` names whatever dispatcher
    it likes. For several pieces of a model, pass a ``ModuleList`` of them.

    Args:
        model: a module of Megatron-Core that has ``MoELayer``s.
        cache_dir: as for ``fused_shuffle``.
        options: those of ``fuscoc_runtime.Shuffle`` but ``group``.

    Raises:
        AdapterError: Megatron-Core is missing or another one; there is no ``MoELayer``; or its
            ``config`` asks for what docs/integrations.md says is refused.
        ImportError: the compiler's packages are not installed.
        Whatever ``Shuffle`` raises.
    """

    def open_shuffle(sizes: Sizes, group: Group) -> Shuffle:
        return _shuffle_of_experts(sizes, group, cache_dir, options)

    return megatron.replace_dispatchers(model, open_shuffle)


def _shuffle_of_experts(
    sizes: Sizes,
    group: Group | None,
    cache_dir: str | Path | None,
    options: Mapping[str, Any],
) -> Shuffle:
    names = {dtype: name for name, dtype in TORCH_DTYPES.items()}
    spec = EXPERTS.replace("DTYPE", names[sizes.dtype])
    constants = {"hidden": sizes.hidden, "experts": sizes.experts, "topk": sizes.topk}
    artifact = as_artifact(spec, constants, cache_dir)
    # The adapters' experts work on rows one by one, up to where they end.
    return Shuffle(artifact, group=group, **{"zero_unused": False, **options})


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
