"""``docs/simulation.md`` is what its command writes, and what it claims holds."""

from __future__ import annotations

import re

import pytest

from benchmarks import simulation
from benchmarks.simulation_tables import LEFT_OUT, TABLES, measured

PAGE = simulation.PAGE.read_text(encoding="utf-8")


def part(name: str) -> list[str]:
    found = re.search(f"<!-- {name} -->\n\n(.*?)\n\n<!-- end of {name} -->", PAGE, re.DOTALL)
    assert found is not None
    return found[1].split("\n")


def errors(role: str) -> list[float]:
    """Of all rows of a role, as parts of one."""
    tables = {table.name for table in TABLES if table.role == role}
    lines = [line for line in part("rows")[2:] if line.split(" | ")[0].strip("| ") in tables]
    return [int(each) / 100 for line in lines for each in re.findall(r", \**([+-]\d+)%", line)]


def test_what_needs_no_simulation_is_current() -> None:
    for name, make in (
        ("constants", simulation.constants),
        ("roles", simulation.roles),
        ("rewrites", simulation.rewrites),
    ):
        assert part(name) == make()


def test_one_table_is_current() -> None:
    rows = [row for row in measured() if row.table == "2 GPUs, another version"]
    found = simulation.details(list(simulation.predict(rows)))[2:]
    assert found == [line for line in part("rows") if line.startswith("| 2 GPUs, another version")]


def test_judged_rows_are_as_near_as_is_claimed() -> None:
    judged = errors("judged")
    assert len(judged) == sum(row.role == "judged" for row in measured())
    assert sum(abs(each) <= simulation.NEAR for each in judged) >= 0.9 * len(judged)
    assert all(abs(each) <= simulation.FAR for each in judged)


def table(name: str) -> list[list[str]]:
    return [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in part(name)[2:]]


def percent(cell: str) -> float:
    return float(cell.rstrip("%"))


def test_fuscos_readme_is_met() -> None:
    cells = table("readme")
    assert len(cells) == 24
    for kind, tokens, contender, published, _, error, bound, over in cells:
        is_planning = (kind, tokens, contender) == ("single-node", "4096", "FUSCO")
        assert abs(percent(error)) <= (30 if is_planning else 16)
        assert float(over) == pytest.approx(float(published) / float(bound), abs=0.06)
        assert float(over) >= 1


def test_parts_are_worth_what_was_published() -> None:
    """Signs and order of all nine cells."""
    rows = table("ablation")
    assert len(rows) == 9
    assert all(abs(percent(row[4])) <= 25 for row in rows)
    for kind in ("real-world", "single-node", "imbalanced"):
        published = {row[1]: percent(row[5]) for row in rows if row[0] == kind}
        predicted = {row[1]: percent(row[6]) for row in rows if row[0] == kind}
        assert len(published) == 3
        assert sorted(published, key=published.__getitem__) == sorted(
            predicted, key=predicted.__getitem__
        )
        assert min(predicted.values()) > 0


def test_fast_gains_what_was_published() -> None:
    gains = [cell for cell in table("fast") if cell[:2] == ["h200-4x8-fast", "Zipf 0.8"]]
    assert len(gains) == 2
    for *_, gain, _, published in gains:
        least, most = map(float, published.split("–"))
        assert float(gain) == pytest.approx((least + most) / 2, rel=0.15)


def test_what_is_left_out_has_a_reason() -> None:
    assert all(LEFT_OUT.values())


@pytest.mark.nightly
def test_measured_tables_are_current() -> None:
    rows = list(simulation.predict(measured()))
    assert simulation.with_parts(PAGE, simulation.validation_parts(rows)) == PAGE


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_published_tables_are_current() -> None:
    assert simulation.with_parts(PAGE, simulation.PUBLISHED_PARTS) == PAGE
