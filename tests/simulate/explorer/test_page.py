"""The explorer's page: what is in it, and what can never be."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from fuscoc.simulate.record import Leg, Record, Run, from_trace
from fuscoc_runtime.kernels.trace import Span, write_trace
from tests.simulate.explorer.pages import Element, parse, unpack
from tests.simulate.explorer.records import RANK_KINDS, TITLE, make_record

for needed in ("jinja2", "plotly"):
    pytest.importorskip(needed, reason="the explorer needs the extra `plot`")
write = import_module("fuscoc.simulate.explorer").write
render = import_module("fuscoc.simulate.explorer.page").render

MAX_BYTES = 12e6


@pytest.fixture(scope="module")
def record() -> Record:
    return make_record(num_nodes=3, ranks_per_node=4)


@pytest.fixture(scope="module")
def html(record: Record) -> str:
    return render(record)


@pytest.fixture(scope="module")
def page(html: str) -> Element:
    return parse(html)


def test_views_are_panels_that_a_script_finds(page: Element) -> None:
    panels = page.all("section", role="tabpanel")
    titles = [panel.attributes["data-title"] for panel in panels]
    assert titles == ["Overview", "Cluster", "Timeline", "Traffic", "Stages", "Numbers"]
    assert len(page.all("div", role="tablist")) == 1
    tags = ("section", "div", "span", "select", "button", "input", "fieldset", "p", "script")
    elements = [element for tag in tags for element in page.all(tag)]
    ids = [each.attributes["id"] for each in elements if "id" in each.attributes]
    assert len(ids) == len(set(ids))
    (theme,) = page.all("button", id="theme")
    assert theme.attributes["aria-label"]
    assert all(label.all("input") or label.all("select") for label in page.all("label"))


def test_nothing_is_fetched(html: str, page: Element) -> None:
    """The policy allows these two scripts alone, and no element names another file."""
    (policy,) = page.all("meta", http_equiv="Content-Security-Policy")
    scripts = [each for each in page.all("script") if "type" not in each.attributes]
    hashes = [base64.b64encode(hashlib.sha256(s.text.encode()).digest()).decode() for s in scripts]
    assert "default-src 'none'" in policy.attributes["content"]
    assert policy.attributes["content"].endswith(
        "script-src " + " ".join(f"'sha256-{each}'" for each in hashes)
    )
    assert len(scripts) == 2
    assert not page.all("link")
    for tag in ("script", "img", "iframe", "a", "source", "object"):
        for element in page.all(tag):
            assert not {"src", "href", "data"} & element.attributes.keys()


def test_texts_are_texts(record: Record) -> None:
    """Whatever stands in a record's words, the page has the elements of any other."""
    mean = "</script><script>alert(1)</script><!-- \" ' & {{ title }} {% raw %} \u2028"
    first, *others = record.runs
    changed = replace(record, title=mean, traffic=mean, runs=(replace(
        first, contender=mean, rewrite=mean, memory={mean: 1.0}), *others))  # fmt: skip
    plain = replace(
        record, title="t", traffic="t",
        runs=(replace(first, contender="t", rewrite="t", memory={"t": 1.0}), *others),
    )  # fmt: skip
    page, same = parse(render(changed)), parse(render(plain))

    def shape(element: Element) -> list[object]:
        return [element.tag, sorted(element.attributes), [shape(each) for each in element.children]]

    assert shape(page) == shape(same)
    (title,) = page.all("title")
    assert title.text == f"{mean}: fuscoc"
    assert unpack(page)["runs"][0]["name"] == mean


def test_the_same_record_gives_the_same_bytes(record: Record, html: str, tmp_path: Path) -> None:
    write(Record.from_json(record.to_json()), tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes() == html.encode()


def test_the_headline_and_the_tables(record: Record, page: Element) -> None:
    (headline,) = page.all("h1")
    assert headline.text == "fuscoc on 12 GPUs: dispatch and combine take , bound by receiving NICs"
    assert headline.all("em")[0].text == "1.80 ms"
    captions = [caption.text for caption in page.all("caption")]
    assert captions == [
        "Runs", "Programs", "What each kind of link needs, and its part of the time",
        "Memory of the rank that needs most", "Without one part", "Time by tokens",
    ]  # fmt: skip
    runs, programs, bounds, memory, ablation, sweep = page.all("tbody")
    assert [row.all("th")[0].text for row in runs.all("tr")] == [r.contender for r in record.runs]
    assert [cell.text for cell in runs.all("tr")[0].all("td")] == [
        "1.80 ms", "1.48 ms", "810 µs", "NIC in", "990 µs", "NIC in",
    ]  # fmt: skip
    assert programs.all("tr")[1].all("td")[0].text == "dedup(naive)"
    assert bounds.all("tr")[0].all("td")[0].text == "664 µs (82%)"
    assert memory.all("tr")[-1].all("td")[0].text == "1.3 GiB"
    assert ablation.all("tr")[0].all("td")[1].text == "-42.0%"
    assert len(sweep.all("tr")) == 4
    assert TITLE in page.all("p", **{"class": "lead"})[0].text


def test_the_data_are_the_records(record: Record, page: Element) -> None:
    data = unpack(page)
    kinds = {kind["name"]: place for place, kind in enumerate(data["cluster"]["kinds"])}
    links = record.cluster.links
    for run, shown in zip(record.runs, data["runs"], strict=True):
        assert (shown["name"], shown["seconds"]) == (run.contender, run.seconds)
        check_leg(run.dispatch, shown["legs"]["dispatch"], links, kinds)
        check_leg(run.combine, shown["legs"]["combine"], links, kinds)
        for grain in ("node", "rank"):
            for when, matrix in zip(("before", "after"), shown["traffic"][grain], strict=True):
                expected = getattr(run.traffic, f"{grain}_{when}")
                np.testing.assert_allclose(matrix, expected, rtol=1e-6)
        for number, stage in enumerate(run.stages):
            sent = shown["stages"]["sent"][number]
            np.testing.assert_allclose(sent, stage.bytes.sum(axis=1), rtol=1e-6)
            peer = shown["stages"]["peer"][number]
            assert (stage.bytes[np.arange(len(peer)), peer] == stage.bytes.max(axis=1)).all()


def check_leg(leg: Leg, shown: dict, links, kinds: dict[str, int]) -> None:
    for link in range(len(links.kind)):
        name = f"{links.kind[link]} {links.direction[link]}".strip()
        found, owner = shown["links"][kinds[name]], links.owner[link]
        assert found["busy"][owner] == pytest.approx(leg.busy[link], rel=1e-6)
        assert found["bytes"][owner] == pytest.approx(leg.bytes[link], rel=1e-6)
    line = shown["timeline"]
    spans = leg.spans
    order = np.lexsort((spans.begin, spans.lane, spans.rank))
    assert line["ranks"].tolist() == spans.ranks.tolist()
    rank = np.repeat(line["ranks"], np.diff([*line["first"], len(line["lane"])]))
    assert rank.tolist() == spans.rank[order].tolist()
    names = [line["names"][name] for name in line["name"]]
    assert names == [spans.names[name] for name in spans.name[order]]
    np.testing.assert_allclose(line["begin"] * line["tick"], spans.begin[order], atol=line["tick"])
    end = (line["begin"].astype(float) + line["length"]) * line["tick"]
    np.testing.assert_allclose(end, spans.end[order], atol=line["tick"])


def test_a_recorded_run_alone_and_beside(record: Record, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    lanes = {"wire": 5.1, "gather": 5.0, "forward": 5.2}  # sorted by name in the trace
    spans = [
        Span(rank, lane, "round 0", begin + rank, 5.5 + rank)
        for rank in range(3)
        for lane, begin in lanes.items()
    ]
    write_trace(trace, spans)
    alone = from_trace(trace)
    data = unpack(parse(render(alone)))
    assert data["cluster"] is None
    (run,) = data["runs"]
    timeline = run["legs"]["recorded"]["timeline"]
    assert timeline["seconds"] == pytest.approx(2.5)
    assert timeline["lanes"] == ["gather", "wire", "forward"]
    wires = timeline["begin"][timeline["lane"] == 1] * timeline["tick"]
    np.testing.assert_allclose(wires, [0.1, 1.1, 2.1], rtol=1e-6)
    data = unpack(parse(render(replace(record, recorded=alone.recorded))))
    assert [run["name"] for run in data["runs"]] == [
        *(run.contender for run in record.runs), "recorded",
    ]  # fmt: skip


def test_a_run_of_nothing() -> None:
    """No rows, no time: no division by it."""
    record = make_record(2, 2, contenders=("idle",))
    (run,) = record.runs
    none = np.zeros(0, np.int64)
    spans = replace(run.dispatch.spans, rank=none, lane=none, name=none, ranks=none,
                    begin=np.zeros(0), end=np.zeros(0))  # fmt: skip
    leg = replace(run.dispatch, seconds=0.0, load=None, spans=spans, bounds=(), limit="host")
    idle: Run = replace(run, seconds=0.0, dispatch=leg, combine=None, stages=(), memory={})
    data = unpack(parse(render(replace(record, runs=(idle,), sweep=(), ablation=()))))
    assert data["runs"][0]["stages"] is None
    assert len(data["runs"][0]["legs"]["dispatch"]["timeline"]["ranks"]) == 0


@pytest.mark.nightly
def test_a_thousand_ranks_fit() -> None:
    names = ("fuscoc", "naive", "deduplicated", "fusco", "fast")
    record = make_record(128, 8, names, rounds=32, samples=240, loaded=(*RANK_KINDS, "leaf"))
    html = render(record)
    assert len(html.encode()) <= MAX_BYTES
    for run in unpack(parse(html))["runs"]:
        for leg in run["legs"].values():
            assert {int(rank) // 8 for rank in leg["timeline"]["ranks"]} == set(range(128))
