"""The Megatron-Core adapter against Megatron's own all-to-all dispatcher, forward and backward."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from importlib import metadata
from types import SimpleNamespace

import pytest

from fuscoc_runtime.adapters import megatron
from fuscoc_runtime.adapters.megatron_options import REFUSED, SERVED, find_refused
from fuscoc_runtime.errors import AdapterError
from tests.adapters import megatron_layers
from tests.adapters.megatron_layers import EXPERTS, HIDDEN, TOPK, Layout
from tests.engine import specs
from tests.engine.pool import Pool

pytestmark = pytest.mark.usefixtures("megatron_core")


def artifact(tensor: int = 1, align: int = 1, experts: int = EXPERTS) -> str:
    text = specs.routed("f32", HIDDEN, tensor * experts, tensor * TOPK, align=align)
    return str(specs.artifact(text).path)


def test_the_installed_version_is_one_that_was_read() -> None:
    assert metadata.version("megatron-core") in ("0.16.1", megatron.DISPATCHER.version)
    megatron.DISPATCHER.load()
    megatron.LAYER.load()


@pytest.mark.parametrize(
    ("layout", "align", "keep", "fixed"),
    [
        (Layout(1, 4), 1, 1.0, False),
        (Layout(1, 4), 4, 0.6, False),
        (Layout(1, 4), 4, 0.6, True),
        (Layout(2, 2), 1, 1.0, False),
    ],
    ids=["ep4", "ep4 padded, with drops", "ep4 of fixed capacity", "tp2 x ep2"],
)
def test_same_as_all_to_all(
    pool: Pool, layout: Layout, align: int, keep: float, fixed: bool
) -> None:
    path = artifact(layout.tensor, align)
    assert pool.run(megatron_layers.compare, 4, path, layout, 13, keep, fixed) == [[]] * 4


@pytest.mark.parametrize("fixed", [False, True], ids=["exact", "fixed"])
def test_a_layer_that_is_recomputed(pool: Pool, fixed: bool) -> None:
    """The first pass keeps nothing for a backward pass, the second one is in it."""
    layout = Layout(1, 4)
    assert (
        pool.run(megatron_layers.compare, 4, artifact(), layout, 13, 1.0, fixed, True) == [[]] * 4
    )


@pytest.mark.parametrize("setting", REFUSED)
def test_what_cannot_be_done_is_refused(pool: Pool, setting: str) -> None:
    with pytest.raises(AdapterError, match=f"{setting} cannot be combined"):
        pool.run(megatron_layers.make, 4, artifact(), {setting: True})


def test_tokens_that_are_projected_before_they_travel(pool: Pool) -> None:
    sizes = {"hidden_size": 2 * HIDDEN, "moe_latent_size": HIDDEN}
    pool.run(megatron_layers.make, 4, artifact(), sizes)


@pytest.mark.parametrize(
    ("impl", "scope", "served"),
    [
        ("none", [], "always"),
        ("local", [], "never"),  # the whole layer
        ("local", ["attn", "mlp"], "always"),
        ("local", ["moe_router"], "never"),
        ("local", ["full_iteration"], "without waits"),
        ("full_iteration", [], "without waits"),
        ("transformer_engine", ["attn", "moe_router"], "always"),
        ("transformer_engine", ["moe_router", "moe_preprocess"], "never"),
        ("transformer_engine", "full", "never"),
    ],
)
def test_graphs_of_parts_of_a_model(impl: str, scope: str | list[str], served: str) -> None:
    config = megatron_layers.configuration(Layout(1, 4))
    parts = scope if isinstance(scope, str) else [SimpleNamespace(name=part) for part in scope]
    config.cuda_graph_impl, config.cuda_graph_scope, config.cuda_graph_modules = impl, parts, None
    assert (find_refused(config, waits=True) is None) == (served == "always")
    assert (find_refused(config, waits=False) is None) == (served != "never")


def test_padding_that_experts_count_on() -> None:
    config = megatron_layers.configuration(Layout(1, 4))
    config.moe_token_dispatcher_type, config.moe_flex_dispatcher_backend = "flex", "hybridep"
    assert find_refused(config, waits=True) is None
    config.fp8 = "e4m3"
    assert "count on its padding" in str(find_refused(config, waits=True))


def test_dispatchers_of_an_inference_engine() -> None:
    config = megatron_layers.configuration(Layout(1, 4))
    config.transformer_impl = "inference_optimized"
    assert "transformer_impl cannot be" in str(find_refused(config, waits=True))


def test_an_option_that_nobody_has_looked_at() -> None:
    from megatron.core.transformer.transformer_config import TransformerConfig

    @dataclass
    class Newer(TransformerConfig):
        moe_dispatch_twice: bool = False
        moe_twins: list[int] = field(default_factory=list)

    newer = Newer(num_layers=1, hidden_size=HIDDEN, num_attention_heads=4)
    assert find_refused(newer, waits=True) is None
    newer.moe_dispatch_twice = True
    assert (
        find_refused(newer, waits=True)
        == "moe_dispatch_twice is an option that the adapter does not know"
    )
    newer.moe_dispatch_twice, newer.moe_twins = False, [1]
    assert (
        find_refused(newer, waits=True) == "moe_twins is an option that the adapter does not know"
    )


def test_every_option_that_dispatchers_read_is_on_a_list() -> None:
    """Of the code around a dispatcher, what it asks a configuration for; and all options of
    mixtures of experts."""
    from megatron.core.transformer.moe import moe_layer, moe_utils, token_dispatcher
    from megatron.core.transformer.transformer_config import TransformerConfig

    assert not SERVED & REFUSED.keys()
    sources = [inspect.getsource(module) for module in (token_dispatcher, moe_layer, moe_utils)]
    read = {name for source in sources for name in options_read(source)}
    assert {"moe_shared_expert_overlap", "moe_latent_size", "fp8_recipe"} <= read
    named = {each.name for each in fields(TransformerConfig) if "moe" in each.name}
    assert (
        read & {each.name for each in fields(TransformerConfig)} | named <= SERVED | REFUSED.keys()
    )


def options_read(source: str) -> Iterator[str]:
    """Attributes of whatever is called `config`, and names that `getattr` is given of it."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=owner, attr=name) if is_config(owner):
                yield name
            case ast.Call(func=ast.Name("getattr"), args=[owner, ast.Constant(name), *_]):
                if is_config(owner):
                    yield name


def is_config(node: ast.expr) -> bool:
    return isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node).endswith("config")


def test_another_spec_is_refused(pool: Pool) -> None:
    with pytest.raises(AdapterError, match=f"num_experts = {EXPERTS}; the spec of routed says 16"):
        pool.run(megatron_layers.make, 4, artifact(experts=16), {})
