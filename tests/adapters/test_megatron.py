"""The Megatron-Core adapter against Megatron's own all-to-all dispatcher, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

import pytest

from fuscoc_runtime.adapters import megatron
from fuscoc_runtime.errors import AdapterError
from tests.adapters import megatron_layers
from tests.adapters.megatron_layers import EXPERTS, HIDDEN, TOPK, Layout
from tests.engine import specs
from tests.engine.pool import Pool

pytest.importorskip("megatron.core", reason="megatron-core is not installed", exc_type=ImportError)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    processes = Pool(4)
    yield processes
    processes.close()


def artifact(tensor: int = 1, align: int = 1, experts: int = EXPERTS) -> str:
    text = specs.routed("f32", HIDDEN, tensor * experts, tensor * TOPK, align=align)
    return str(specs.artifact(text).path)


def test_the_installed_version_is_the_one_that_was_read() -> None:
    assert metadata.version("megatron-core") == megatron.DISPATCHER.version
    megatron.DISPATCHER.load()


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


@pytest.mark.parametrize("setting", megatron.UNSUPPORTED)
def test_what_cannot_be_done_is_refused(pool: Pool, setting: str) -> None:
    with pytest.raises(AdapterError, match=f"{setting} cannot be combined"):
        pool.run(megatron_layers.refused, 4, artifact(), setting)


def test_another_spec_is_refused(pool: Pool) -> None:
    with pytest.raises(AdapterError, match=f"num_experts = {EXPERTS}; the spec of routed says 16"):
        pool.run(megatron_layers.refused, 4, artifact(experts=16), "finalize_model_grads_func")
