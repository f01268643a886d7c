"""Code and commands that README and docs show are run, and print what is shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from torch.nn.functional import embedding_bag

import fuscoc
from fuscoc import compile, load
from fuscoc.planning.routing import make_routing
from fuscoc_runtime import Topology, load_artifact
from fuscoc_runtime.plan import Plan
from tests.cli.conftest import Run
from tests.docs.pages import blocks, command_lines


@pytest.mark.parametrize("page", ["README.md", "docs/diagnostics.md"])
def test_the_error_that_is_shown(fuscoc: Run, files: Path, page: str) -> None:
    [shown] = [text for text in blocks(page) if text.startswith("error[FSC011]")]
    wrong = re.search(r"^(\d+) \| (.* by_tokn.*)$", shown, re.MULTILINE)
    assert wrong is not None
    lines = (files / "moe.fsc").read_text().splitlines()
    lines[int(wrong[1]) - 1] = wrong[2]
    (files / "moe.fsc").write_text("\n".join(lines))
    code, _, err = fuscoc("check", "moe.fsc")
    assert code == 1
    assert err.startswith(shown)


def test_commands_run(fuscoc: Run, files: Path) -> None:
    """Those of README that need no processes; on fewer tokens."""
    run = [line for line in command_lines("README.md") if line[0] in ("explain", "plan")]
    assert len(run) == 2
    for words in run:
        fewer = ["--tokens", "8"] if words[0] == "plan" else []
        assert fuscoc(*words, *fewer)[0] == 0
    assert (files / "plan.html").exists()


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_run_that_is_shown(fuscoc: Run, files: Path) -> None:
    """But for times, which are each machine's own."""
    [shown] = [text for text in blocks("README.md") if text.startswith("$ fuscoc run")]
    command, *lines = shown.splitlines()
    compile("moe.fsc", files / "build" / "moe")
    code, out, err = fuscoc(*command.split()[2:], "--device", "cpu")
    assert code == 0, err
    printed = [_without_times(line) for line in out.splitlines()]
    for line in lines:
        assert line.strip() == "…" or _without_times(line) in printed


def _without_times(line: str) -> list[str]:
    """The words of a line; of a rank's row those before and behind its three times."""
    words = line.split()
    return words[:7] + words[10:] if line.lstrip()[:1].isdigit() else words


def test_code_of_the_readme(files: Path) -> None:
    """The first block; ``test_decorator.test_the_snippet`` runs the second."""
    torch.manual_seed(0)
    weights, idx = torch.rand(4, 256).topk(8)
    x = torch.randn(4, 7168, dtype=torch.bfloat16)
    names = {"x": x, "topk_idx": idx, "topk_weights": weights, "experts": lambda rows, _: rows}
    exec(blocks("README.md", "python")[0], names)
    expected = x.float() * weights.sum(1, keepdim=True)
    torch.testing.assert_close(names["y"].float(), expected, rtol=0.02, atol=0.02)


def test_code_about_compact_targets(files: Path) -> None:
    [code] = [text for text in blocks("docs/language.md", "python") if "row_index" in text]
    [spec] = [text for text in blocks("docs/language.md", "fsc") if "compact" in text]
    weights, idx = torch.rand(4, 256).topk(8)
    x = torch.randn(4, 7168, dtype=torch.bfloat16)
    shuffle = load(compile(spec, files / "gathered"))
    names = {"shuffle": shuffle, "x": x, "topk_idx": idx, "topk_weights": weights}
    names["work"] = lambda taken, handle: taken
    exec(code, names)
    expected = x.float() * weights.sum(1, keepdim=True)
    torch.testing.assert_close(names["y"].float(), expected, rtol=0.02, atol=0.02)


def test_code_about_memory(files: Path) -> None:
    [code] = [text for text in blocks("docs/language.md", "python") if "cache" in text]
    sizes = {"layers": 2, "page": 2, "heads": 1, "width": 4}
    given, cache = (torch.randn(2, pages, 2, 2, 1, 4).bfloat16() for pages in (3, 5))
    names: dict[str, Any] = {
        "shuffle": load(compile("examples/kv_cache.fsc", files / "cached", **sizes)),
        "given": given,
        "source": torch.tensor([2, 0]),
        "destination": torch.tensor([[0, 1], [0, 0]]),
        "table": torch.tensor([4, 1]),
        "cache": cache,
    }
    wanted = cache.clone()
    wanted[:, [1, 4]] = given[:, [2, 0]]
    exec(code, names)
    assert torch.equal(cache, wanted)
    assert names["cache"].data_ptr() == cache.data_ptr()


def test_code_about_replies(files: Path) -> None:
    [code] = [text for text in blocks("docs/language.md", "python") if "embedding" in text]
    [spec] = [text for text in blocks("docs/language.md", "fsc") if "reply" in text]
    (files / "embedding.fsc").write_text(spec)
    table, ids, weights = torch.randn(9, 128), torch.randint(9, (2, 32)), torch.rand(2, 32)
    names = {"fuscoc": fuscoc, "table": table, "first": 0, "ids": ids, "weights": weights}
    exec(code, names)
    bags = embedding_bag(ids, table, mode="sum", per_sample_weights=weights)
    torch.testing.assert_close(names["sums"], bags)


def test_code_about_plans(files: Path) -> None:
    artifact = load_artifact(compile("moe.fsc", files / "planned", hidden=16))
    spec = artifact.shuffle()
    ranks = make_routing(spec, Topology(4, 8), "uniform", 4, seed=0)
    names: dict[str, Any] = {"artifact": artifact, "spec": spec, "ranks": ranks}
    exec(blocks("docs/planning.md", "python")[0], names)
    assert Plan.load(files / "plan.npz").topology == Topology(4, 8)
    assert names["plan"].schedule.kind == "fast"


def test_code_about_properties(files: Path) -> None:
    [code] = blocks("docs/property-testing.md", "python")
    names: dict[str, Any] = {}
    exec(code, names)
    few = hypothesis.settings(max_examples=3, database=None)
    few(names["test_no_rank_gets_more_than_all"])()
