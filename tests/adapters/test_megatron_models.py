"""Whole models of Megatron-Core: trained with fuscoc's dispatchers and with Megatron's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuscoc.torch import megatron_dispatchers
from fuscoc_runtime.errors import AdapterError
from tests.adapters import megatron_models
from tests.adapters.megatron_layers import Layout
from tests.engine.pool import Pool

pytestmark = pytest.mark.usefixtures("megatron_core")

FOUR = Layout(1, 4)
SIGMOID = {
    "moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True,
    "moe_router_load_balancing_type": "none", "moe_aux_loss_coeff": 0.0,
    "moe_shared_expert_gate": True, "gated_linear_unit": True,
}  # fmt: skip
BIASES = {"add_bias_linear": True, "moe_shared_expert_intermediate_size": None}
LAYER_AGAIN = {"recompute_granularity": "selective", "recompute_modules": ["moe"]}
ALL_AGAIN = {
    "recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1,
}  # fmt: skip
FIXED = {"max_sources": megatron_models.SEQUENCES * megatron_models.LENGTH}


def test_two_steps(pool: Pool) -> None:
    """A dense layer and two with experts, shared ones too, and auxiliary losses."""
    assert pool.run(megatron_models.train, 4, FOUR, {}, {}, 2) == [[]] * 4


@pytest.mark.nightly
@pytest.mark.parametrize("options", [{}, FIXED], ids=["exact", "fixed"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        # As many layers as the others have: Megatron keeps losses by layer as long as it lives.
        {"moe_layer_freq": 1},
        SIGMOID,
        BIASES,
        {"moe_expert_capacity_factor": 0.75},
        LAYER_AGAIN,
        ALL_AGAIN,
    ],
    ids=[
        "as it is",
        "no dense layer",
        "sigmoid",
        "biases",
        "drops",
        "recomputed layer",
        "all recomputed",
    ],
)
def test_settings(pool: Pool, settings: dict[str, Any], options: dict[str, Any]) -> None:
    assert pool.run(megatron_models.train, 4, FOUR, settings, options, 2) == [[]] * 4


def test_what_is_refused_changes_nothing(pool: Pool) -> None:
    for outcome in pool.outcomes(megatron_models.refused, 4, {"moe_shared_expert_overlap": True}):
        assert isinstance(outcome, str)
        assert "moe_shared_expert_overlap cannot be combined" in outcome


def test_a_model_without_experts() -> None:
    with pytest.raises(AdapterError, match="Linear has no MoELayer"):
        megatron_dispatchers(torch.nn.Linear(2, 2))
