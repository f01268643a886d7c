"""The table of constructs and backends is whole, and stands in the docs as it is."""

from __future__ import annotations

from fuscoc.capabilities import CUDA, TRITON_NODE, Table, find_fault
from fuscoc.lang.checked import CheckedShuffle
from tests.docs.constructs import PAGE, rows, written


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
