"""Distinct keys by CUDA's kernels, thread by thread on the host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fuscoc
from fuscoc_runtime.manifest.artifact import load_artifact
from tests.cuda import dense_node
from tests.cuda.emulation.ranks import emulated_ranks, synchronize
from tests.engine import specs
from tests.engine.distinct_work import TOKENS, drawn, firsts
from tests.node_triton.rank_work import batch


@pytest.mark.parametrize("arch", [80, 90])
def test_what_is_named_again_is_told(
    arch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is dropped, and all else is as without it."""
    monkeypatch.setenv("FUSCOC_CUDA_ARCH", f"sm_{arch}")
    text = specs.routed("f32", topk=5, capacity="distinct")
    path = fuscoc.compile(text, tmp_path / "artifact")
    shuffle = load_artifact(path).shuffle()
    named = drawn(5, 2, 12, 5)
    ranks = [
        replace(data, inputs={**data.inputs, "idx": firsts(idx)})
        for data, idx in zip(batch(shuffle, [TOKENS] * 2, 3), named, strict=True)
    ]

    def call() -> list[str]:
        dense = dense_node.Dense(path, [ranks], torch.device("cpu"))
        made = dense.batch(ranks)
        again = int((named[dense.rank] != made.inputs["idx"]).sum())
        made = replace(made, inputs={**made.inputs, "idx": named[dense.rank]})
        dense.wipe()
        dense_node.dist.barrier()
        handle = dense.dispatch(made)
        synchronize()
        wrong = int(dense.wrong_rows(made, handle))
        wrong += int(dense.wrong_result(made, dense.combine(made, handle)))
        told = dense.troubles().bad_keys
        problems = [f"{wrong} rows and sums"] if wrong else []
        return problems + ([] if told == again > 0 else [f"{told} of {again} are told"])

    with emulated_ranks(2, arch) as world:
        assert world.run(call) == []
