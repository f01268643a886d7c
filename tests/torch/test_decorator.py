"""``fused_shuffle``: what it takes, what it hands on, when it opens and what it compiles."""

from __future__ import annotations

import builtins
import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import fuscoc_runtime
from fuscoc import fused_shuffle
from fuscoc.torch import as_artifact
from fuscoc_runtime.errors import ArtifactError, InputError
from fuscoc_runtime.face.executor import Executor
from fuscoc_runtime.manifest.artifact import Artifact
from tests.engine import specs
from tests.specs import EXAMPLES

ROUTED = specs.routed("f32", keys=4, topk=2)
SMALL = {"hidden": 16, "experts": 4, "topk": 2}


def batch(tokens: int = 5) -> dict[str, Tensor]:
    torch.manual_seed(tokens)
    idx = torch.randint(-1, 4, (tokens, 2))
    return {"x": torch.randn(tokens, 24), "idx": idx, "weights": torch.rand(tokens, 2)}


def doubled(given: dict[str, Tensor]) -> Tensor:
    sums = (given["weights"] * (given["idx"] >= 0)).sum(1, keepdim=True)
    return 2 * given["x"] * sums


def test_the_snippet(monkeypatch: pytest.MonkeyPatch) -> None:
    """As README has it, with its ``moe.fsc``; only the experts are made up."""
    monkeypatch.chdir(EXAMPLES.parent)
    ep_group = None
    hidden_states = torch.randn(3, 7168).bfloat16().requires_grad_()
    topk_idx = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7], [255] + [-1] * 7, [9, 8, 7, 6, 5, 4, 3, 2]])
    topk_weights = torch.rand(3, 8)
    counts = []

    def grouped_mlp(x: Tensor, num_tokens_per_expert: Tensor) -> Tensor:
        counts.append(num_tokens_per_expert)
        return 2 * x

    @fused_shuffle("examples/moe.fsc", group=ep_group)
    def experts(x, num_tokens_per_expert):  # type: ignore[no-untyped-def]
        return grouped_mlp(x, num_tokens_per_expert)

    y = experts(hidden_states, topk_idx=topk_idx, topk_weights=topk_weights)

    sums = (topk_weights * (topk_idx >= 0)).sum(1, keepdim=True)
    torch.testing.assert_close(y.float(), 2 * hidden_states.float() * sums, rtol=0.02, atol=0.02)
    assert counts[0].tolist() == torch.bincount(topk_idx[topk_idx >= 0], minlength=256).tolist()
    y.sum().backward()
    assert hidden_states.grad is not None


@pytest.mark.parametrize("kind", ["path", "string", "text", "directory", "artifact"])
def test_what_it_takes(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "routed.fsc"
    path.write_text(ROUTED)
    built = specs.artifact(ROUTED)
    spec = {
        "path": path,
        "string": str(path),
        "text": ROUTED,
        "directory": built.path,
        "artifact": built,
    }[kind]

    @fused_shuffle(spec)
    def layer(rows: Tensor) -> Tensor:
        return 2 * rows

    given = batch()
    torch.testing.assert_close(layer(**given), doubled(given))
    with torch.no_grad():
        torch.testing.assert_close(layer(given.pop("x"), **given), doubled(batch()))


def test_what_the_function_is_given() -> None:
    seen: dict[str, Any] = {}

    class Layer:
        factor = 2

        @fused_shuffle(ROUTED)
        def experts(self, rows: Tensor, counts: Tensor, *, handle: Any, bias: float) -> Tensor:
            """Words."""
            seen.update(rows=rows, counts=counts, handle=handle, bias=bias)
            return self.factor * rows

    layer, given = Layer(), batch()
    torch.testing.assert_close(layer.experts(**given, bias=0.5), doubled(given))
    live = given["idx"][given["idx"] >= 0]
    assert seen["counts"].tolist() == torch.bincount(live, minlength=4).tolist()
    assert torch.equal(seen["counts"], seen["handle"].key_counts)
    assert len(seen["rows"]) == seen["handle"].num_slots
    assert seen["bias"] == 0.5
    assert Layer.experts.__doc__ == "Words."
    assert Layer.experts.shuffle() is Layer().experts.shuffle()


def test_functions_with_other_parameters() -> None:
    with pytest.raises(TypeError, match="takes 3 positional parameters"):
        fused_shuffle(ROUTED)(lambda rows, counts, more: rows)


def test_without_a_combine_the_functions_result_is_returned() -> None:
    @fused_shuffle(specs.FIELDS)
    def count(rows: dict[str, Tensor]) -> int:
        return len(rows["payload"])

    payload = torch.zeros(2, 20, dtype=torch.uint8)
    idx = torch.tensor([[0, 5], [5, -1]])
    assert count(torch.zeros(2, 3), payload, torch.arange(2), idx=idx) == 3


def test_it_opens_at_the_first_call() -> None:
    layer = fused_shuffle("no such file.fsc")(lambda rows: rows)
    with pytest.raises(FileNotFoundError):
        layer(**batch())


def test_constants() -> None:
    artifact = as_artifact(EXAMPLES / "moe.fsc", SMALL)
    assert artifact.shuffle().declared.constants["hidden"] == 16
    with pytest.raises(ValueError, match="constants only change a spec"):
        as_artifact(artifact, SMALL)


@pytest.fixture
def compiled_before(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    """An artifact, made before the compiler went away."""
    made, real = specs.artifact(ROUTED), builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name == "fuscoc.driver" or (name == "fuscoc" and "driver" in (rest[2] or ())):
            raise ImportError("No module named 'lark'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    return made


def test_without_the_compiler(compiled_before: Artifact) -> None:
    layer = fused_shuffle(ROUTED + "// not in the cache\n")(lambda rows: 2 * rows)
    with pytest.raises(ImportError, match=r"'lark'; compiling a spec needs .* `fuscoc compile`"):
        layer(**batch())
    layer = fused_shuffle(compiled_before)(lambda rows: 2 * rows)
    torch.testing.assert_close(layer(**batch()), doubled(batch()))


def test_the_runtimes_own_decorator() -> None:
    layer = fuscoc_runtime.fused_shuffle(specs.artifact(ROUTED).path)(lambda rows: 2 * rows)
    torch.testing.assert_close(layer(**batch()), doubled(batch()))
    for spec in (ROUTED, "my.fsc"):
        with pytest.raises(ArtifactError, match="is a spec, not an artifact"):
            fuscoc_runtime.fused_shuffle(spec)


@pytest.mark.parametrize("options", [{}, {"max_sources": 5}], ids=["exact", "fixed"])
def test_handles_are_printed_and_not_saved(options: dict[str, Any]) -> None:
    given = batch()
    with fuscoc_runtime.Shuffle(specs.artifact(ROUTED), **options) as shuffle:
        _, handle = shuffle.dispatch(**given)
        for save in (pickle.dumps, copy.deepcopy, lambda each: torch.save(each, "/dev/null")):
            with pytest.raises(TypeError, match=r"cannot be saved or sent: it names buffers"):
                save(handle)
        assert "slots" in repr(handle)
    assert "slots" in repr(handle)


@pytest.mark.parametrize("options", [{}, {"max_sources": 5}], ids=["exact", "fixed"])
def test_a_routing_used_again(options: dict[str, Any]) -> None:
    given = batch()
    shuffle = fuscoc_runtime.Shuffle(specs.artifact(ROUTED), **options)
    rows, first = shuffle.dispatch(**given)
    rows = rows.clone()
    more = given["x"].detach() + 1
    again, second = shuffle.dispatch(more, handle=first)
    used = torch.zeros(len(rows), dtype=torch.bool)
    for begin, count in zip(second.key_offsets, second.key_counts, strict=False):
        used[begin : begin + count] = True
    torch.testing.assert_close(again[used], rows[used] + 1)
    torch.testing.assert_close(shuffle.combine(again * 2, second), doubled({**given, "x": more}))
    again, third = shuffle.dispatch(more, handle=second, weights=2 * given["weights"])
    torch.testing.assert_close(shuffle.combine(again, third), doubled({**given, "x": more}))
    x = more.clone().requires_grad_()
    again, third = shuffle.dispatch(x, handle=second, weights=2 * given["weights"])
    y = shuffle.combine(again, third)
    torch.testing.assert_close(y, doubled({**given, "x": more}))
    y.sum().backward()
    assert x.grad is not None
    with pytest.raises(fuscoc_runtime.FuscoRuntimeError, match=r"`x` .* has the shape \[4, 24\]"):
        shuffle.dispatch(more[1:], handle=first)


@pytest.mark.parametrize("options", [{}, {"max_sources": 30}], ids=["exact", "fixed"])
def test_a_source_that_the_dispatch_would_overwrite(options: dict[str, Any]) -> None:
    """Rows that another dispatch has put where this one puts its own."""
    shuffle, given = fuscoc_runtime.Shuffle(specs.artifact(ROUTED), **options), batch()
    rows, _ = shuffle.dispatch(**given)
    again = {**batch(3), "x": rows[:3]}
    with pytest.raises(InputError, match="`x` on rank 0 is what a dispatch returned"):
        shuffle.dispatch(**again)
    again["x"] = rows[:3].clone()
    rows, handle = shuffle.dispatch(**again)
    torch.testing.assert_close(shuffle.combine(2 * rows, handle), doubled(again))


def test_after_is_for_asynchronous_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", object)  # without a GPU there are none
    shuffle, event = fuscoc_runtime.Shuffle(specs.artifact(ROUTED)), object()
    with pytest.raises(
        fuscoc_runtime.FuscoRuntimeError, match="`after` on rank 0 is given without"
    ):
        shuffle.dispatch(**batch(), after=event)
    rows, handle, done = shuffle.dispatch(**batch(), async_op=True, after=event)
    assert done.query()  # on a CPU the call is over
    with pytest.raises(
        fuscoc_runtime.FuscoRuntimeError, match="`after` on rank 0 is given without"
    ):
        shuffle.combine(rows, handle, after=event)


def test_an_asynchronous_call_waits_for_what_it_is_told_and_keeps_what_it_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "Event", object)
    shuffle, event = fuscoc_runtime.Shuffle(specs.artifact(ROUTED)), object()
    seen: list[tuple[Any, Any]] = []
    beside = Executor.beside

    def noted(self: Executor, call: Any, given: Any, after: Any) -> Any:
        seen.append((after, given))
        return beside(self, call, given, after)

    monkeypatch.setattr(Executor, "beside", noted)
    given = batch()
    rows, handle, _ = shuffle.dispatch(**given, async_op=True, after=event)
    late = given.pop("weights")
    rows, handle, _ = shuffle.dispatch(given["x"], handle=handle, async_op=True)
    shuffle.combine(rows, handle, weights=late, async_op=True, after=event)
    assert [after for after, _ in seen] == [event, None, event]
    kept = [{id(leaf) for leaf in pytree.tree_leaves(held)} for _, held in seen]
    for held, parts in zip(
        kept, [[*given.values(), late], [given["x"]], [rows, late, handle]], strict=True
    ):
        assert {id(part) for part in parts} <= held
