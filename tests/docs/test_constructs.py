"""The table of constructs and backends is whole, and stands in the docs as it is."""

from __future__ import annotations

from fuscoc.capabilities import CUDA, TRITON_NODE, Table, find_fault
from fuscoc.lang.checked import CheckedShuffle
from tests.docs.constructs import PAGE, rows, written
from tests.docs.pages import ROOT

DECISIONS = ROOT / "docs" / "decisions" / "calls.md"
LEFT_OUT = {
    "repeats_rows": "`dedup(none)`, `dedup(node)`",
    "pads_far": "more than 2^30 slots of padding on a rank",
    "weighs_in_f64": "sums of f64 weighted by f64",
    "fans_out_very_far": "more than 1024 destinations of a segment",
    "has_very_many_keys": "more than 65,536 keys",
    "places_segments": "a way back from packed slots to places that inputs name",
    "replies_from_given_slots": "`reply` to a dense target",
    "answers": "`reply` whose own rows are left out",
    "compares_extents": "slots by an extent that all ranks must give alike",
}
"""What the list of the decisions calls each entry of the table of Triton's kernels."""


def entry_of(shuffle: CheckedShuffle, table: Table) -> str | None:
    """The name of the entry that is the first to object to a shuffle."""
    fault = find_fault(shuffle, table)
    return next((each.__name__ for each in table if fault in each(shuffle)), None)


def test_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == written(page), "make docs"


def test_every_entry_is_the_reason_of_a_cell() -> None:
    shuffles = [each for group in rows().values() for each in group.values()]
    for table in (CUDA, TRITON_NODE):
        reasons = {entry_of(each, table) for each in shuffles}
        assert reasons - {None} == {each.__name__ for each in table}


def test_every_hole_is_in_the_list_of_the_decisions() -> None:
    """What neither column of one node does, a reader finds there, with a reason; and no more."""
    page = DECISIONS.read_text(encoding="utf-8")
    _, _, rest = page.partition("| left out | because |\n|---|---|\n")
    listed = {
        line.split(" | ")[0].removeprefix("| ") for line in rest.partition("\n\n")[0].split("\n")
    }
    shuffles = [each for group in rows().values() for each in group.values()]
    holes = {entry_of(each, TRITON_NODE) for each in shuffles} - {None, "demands_cuda"}
    assert {LEFT_OUT[entry] for entry in holes if entry} == listed
