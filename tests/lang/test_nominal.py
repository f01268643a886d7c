"""Whatever is declared for indices is used for these, each in its place."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from fuscoc.fixing import apply
from tests.lang.found import errors

NAMES = "abcd"
names = st.integers(2, 4).flatmap(lambda count: st.permutations(NAMES[:count]))
# Where the source, the target, the route and the view of a spec are used.
PLACES = ["source", "target", "route", "view"]


def spec(declared: dict[str, list[str]], used: dict[str, list[str]]) -> str:
    """Dimensions that all have the same extent, so that nothing but names tells them apart."""

    def listed(which: dict[str, list[str]]) -> dict[str, str]:
        return {place: ", ".join(names) for place, names in which.items()}

    d, u = listed(declared), listed(used)
    return f"""
    shuffle s {{
      {" ".join(f"index {name} : 8" for name in sorted(declared["source"]))}
      segment cell {{ x : f32 }}
      layout source[{d["source"]}] of cell
      layout target[{d["target"]}] of cell
      route r({d["route"]}) -> rank = input to : int64
      view v[{d["view"]}] = source[{u["source"]}]
      dispatch v[{u["view"]}] -> target[{u["target"]}] on r({u["route"]})
    }}"""


@given(st.data())
def test_two_exchanged_indices_are_one_error_whose_fix_is_right(data: st.DataObject) -> None:
    order = data.draw(names)
    declared = {place: data.draw(st.permutations(order)) for place in PLACES}
    right = spec(declared, declared)
    assert errors(right) == []
    place = data.draw(st.sampled_from(PLACES))
    i, j = data.draw(st.sampled_from(list(itertools.combinations(range(len(order)), 2))))
    wrong = list(declared[place])
    wrong[i], wrong[j] = wrong[j], wrong[i]
    text = spec(declared, declared | {place: wrong})
    (found,) = errors(text)
    assert found.code == "FSC041"
    assert found.message == f"`{wrong[i]}` and `{wrong[j]}` are swapped"
    assert found.fix is not None
    assert not found.fix.safe
    assert apply(text, [found.fix]) == right


@given(st.data())
def test_any_other_order_is_one_error_for_each_place(data: st.DataObject) -> None:
    order = data.draw(names)
    declared = {place: data.draw(st.permutations(order)) for place in PLACES}
    used = {place: data.draw(st.permutations(order)) for place in PLACES}
    found = errors(spec(declared, used))
    wrong = [place for place in PLACES if declared[place] != used[place]]
    # A view that is wrong itself is not looked at where it is used.
    expected = len(wrong) - (set(wrong) >= {"source", "view"})
    assert [each.code for each in found] == ["FSC041"] * expected


@given(st.data())
def test_another_index_is_one_error(data: st.DataObject) -> None:
    """Also one that nothing else tells from the right one, and an expression of it is none."""
    order = data.draw(names)
    declared = {place: data.draw(st.permutations(order)) for place in PLACES}
    place = data.draw(st.sampled_from(["target", "route"]))
    at = data.draw(st.integers(0, len(order) - 1))
    other = data.draw(st.sampled_from([name for name in order if name != declared[place][at]]))
    used = declared | {place: [*declared[place]]}
    used[place][at] = other
    (found,) = errors(spec(declared, used))
    assert found.message == f"expected the index `{declared[place][at]}`, found `{other}`"
    used[place][at] = f"{other} + 0"
    assert errors(spec(declared, used)) == []
