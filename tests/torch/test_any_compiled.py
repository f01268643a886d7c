"""Compiled calls of any spec, on one rank, beside the same calls as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fuscoc.testing import Routing, Spec, routings
from fuscoc.testing.routing import with_sources
from fuscoc.testing.texts import texts
from fuscoc_runtime import Shuffle
from fuscoc_runtime.topology import Topology
from tests.engine.lockstep import inputs_of
from tests.node_triton.rank_work import by_field
from tests.node_triton.test_any_spec import compiled

ONE = Topology(1, 1)
Fields = Mapping[str, Tensor]


def check_compiled(spec: Spec, calls: list[Routing], backend: str) -> None:
    """Two dispatches, the second along the first's routing, and their combines, of any sizes."""
    torch._dynamo.reset()
    shuffle, declared = Shuffle(compiled(spec.text)), spec.shuffle.declared
    names = [field.name for field in declared.fields]
    returns_rows = spec.shuffle.back.declared.combine is not None and not (
        declared.casts or spec.shuffle.reply or spec.shuffle.program.is_compact
    )

    def run(dispatch: Callable[..., Any], source: Fields, named: Fields) -> list[Any]:
        found = []
        rows, handle = dispatch(**source, **named)
        along = {name: named[name] for name in spec.shuffle.program.numbers}
        for each, by in ((rows, handle), dispatch(**source, **along, handle=handle)):
            found += [each, by.key_counts, by.key_offsets]
            found += [shuffle.combine(each, by)] if returns_rows else []
        return found

    traced = torch.compile(run, fullgraph=True, dynamic=True, backend=backend)
    for routing in calls:
        [data] = with_sources(shuffle.spec, routing)
        weights = inputs_of(shuffle.spec, data, weights=True)
        given = data.source, {**inputs_of(shuffle.spec, data, weights=False), **weights}
        pairs = zip(
            run(shuffle.dispatch_fresh, *given), traced(shuffle.dispatch, *given), strict=True
        )
        for wanted, found in pairs:
            for name, each in by_field(wanted, names[0]).items():
                assert torch.equal(each, by_field(found, names[0])[name])
    shuffle.close()


def check_any_spec(data: st.DataObject, backend: str) -> None:
    text = data.draw(texts(ONE))
    spec = Spec(text, compiled(text).shuffle())
    calls = data.draw(st.lists(routings(spec, ONE), min_size=1, max_size=3))
    check_compiled(spec, calls, backend)


@settings(max_examples=5)
@given(data=st.data())
def test_any_spec(data: st.DataObject) -> None:
    check_any_spec(data, "eager")


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@settings(max_examples=300)
@given(data=st.data())
def test_any_spec_at_night(data: st.DataObject) -> None:
    check_any_spec(data, "aot_eager")
