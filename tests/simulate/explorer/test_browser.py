"""The explorer in headless Chromium: drawn, clicked, hovered, and driven by keys alone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.simulate.explorer.records import make_cluster, make_record, make_run

for needed in ("jinja2", "plotly"):
    pytest.importorskip(needed, reason="the explorer needs the extra `plot`")
playwright = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright: pip install 'fuscoc[browser]'"
)
write = import_module("fuscoc.simulate.explorer").write

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        # Chromium refuses its sandbox to root, as whom tests run in containers.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explorer") / "page.html"
    write(make_record(num_nodes=2, ranks_per_node=4), path)
    return path


@pytest.fixture
def page(browser: Any, file: Path) -> Iterator[Any]:
    """The page, drawn; whatever it asks for, says or throws fails the test."""
    page = browser.new_page(viewport={"width": 1280, "height": 1000}, color_scheme="light")
    asked, said = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]")
    yield page
    page.close()
    outside = [url for url in asked if not url.startswith(("blob:", "data:"))]
    assert outside == [file.as_uri()]
    assert said == []


def hovered(page: Any, chart: str) -> str:
    page.wait_for_selector(f"#{chart} .hoverlayer .hovertext")
    return " ".join(page.locator(f"#{chart} .hoverlayer .hovertext").all_text_contents())


def until(page: Any, condition: str) -> None:
    """Wait for it; ``wait_for_function`` would need ``eval``, which the page forbids."""
    for _ in range(100):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never: {condition}")


def chosen(page: Any, group: str) -> str:
    return page.locator(f"#{group} input:checked + span").text_content()


def test_every_view_is_drawn(page: Any) -> None:
    charts = {
        "overview": ["contenders", "bounds", "sweep", "ablation"],
        "cluster": ["links", "node-links"],
        "timeline": ["lanes", "busy", "spans"],
        "traffic": ["heat", "nics"],
        "stages": ["stage-map", "stage-size"],
        "numbers": [],
    }
    for view, ids in charts.items():
        page.click(f"#tab-{view}")
        assert page.locator("[role=tabpanel]:visible").get_attribute("id") == view
        for name in ids:
            assert page.locator(f"#{name} .main-svg").first.is_visible()
            assert page.locator(f"#{name}").get_attribute("aria-label")
    assert page.locator("#numbers table").count() == 6


def test_hover_tells_numbers(page: Any) -> None:
    spot = page.locator("#contenders .bars .point path").last.bounding_box()
    page.mouse.move(spot["x"] + spot["width"] / 3, spot["y"] + spot["height"] / 2)
    assert "fuscoc" in hovered(page, "contenders")
    page.click("#tab-timeline")
    first = page.locator("#spans .bars .point path").first
    first.scroll_into_view_if_needed()
    spot = first.bounding_box()
    page.mouse.move(spot["x"] + spot["width"] / 2, spot["y"] + spot["height"] / 2)
    assert "plan: lists" in hovered(page, "spans")
    assert "takes" in hovered(page, "spans")


def test_clicks_choose_runs_ranks_and_nodes(page: Any) -> None:
    spot = page.locator("#contenders .bars .point path").nth(1).bounding_box()
    page.mouse.click(spot["x"] + spot["width"] / 3, spot["y"] + spot["height"] / 2)
    assert chosen(page, "runs") == "naive"
    page.click("#legs label:has-text('combine')")
    assert "naive, combine" in page.locator("#bounds-part h2").text_content()
    page.click("#tab-timeline")
    page.locator("#busy").scroll_into_view_if_needed()
    box = page.locator("#busy .nsewdrag").first.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] * 5.5 / 8)
    assert page.input_value("#rank") == page.locator("#rank-name").text_content() == "5"
    page.click("#tab-cluster")
    box = page.locator("#links .nsewdrag").first.bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.9, box["y"] + box["height"] / 2)
    assert page.input_value("#node") == "1"


def test_zooming_in_one_chart_over_time_zooms_in_all(page: Any) -> None:
    page.click("#tab-timeline")
    box = page.locator("#lanes .nsewdrag").first.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.25, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, middle, steps=4)
    page.mouse.up()
    shown = "id => document.getElementById(id).layout.xaxis.range"
    until(page, f"({shown})('spans')[0] > 0")
    ranges = [page.evaluate(shown, name) for name in ("lanes", "busy", "spans")]
    assert ranges[0] == ranges[1] == ranges[2]
    assert 0 < ranges[0][0] < ranges[0][1] < 810


def test_keys_are_enough(page: Any) -> None:
    page.focus("#tab-overview")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-timeline"
    assert page.locator("#timeline").is_visible()
    page.focus("#busy")
    before = int(page.input_value("#rank"))
    page.keyboard.press("ArrowUp" if before else "ArrowDown")
    assert int(page.input_value("#rank")) == (before - 1 if before else 1)
    page.focus("#runs input:checked")
    page.keyboard.press("ArrowDown")
    assert chosen(page, "runs") == "naive"
    outline = "getComputedStyle(document.querySelector('#runs input:checked + span')).outlineStyle"
    assert page.evaluate(outline) == "solid"


def test_rails_join_equal_local_ranks(browser: Any, tmp_path: Path) -> None:
    """A line to a rail is as busy as the NIC of that local rank of the node it comes from."""
    cluster, rng = make_cluster(4, 3, rails=True), np.random.default_rng(1)
    run = make_run(cluster, "fuscoc", 1e-3, 2, 8, ("nic_in",), rng)
    record = replace(make_record(4, 3), cluster=cluster, runs=(run,))
    write(record, tmp_path / "page.html")
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    script = """unpack().then((data) => {
      const leg = data.runs[0].legs.dispatch, centre = (node) => 4 * node + 1;
      return tiers(data, leg, centre, linksOf(data, leg, "rank"));
    })"""
    found = page.evaluate(script)
    page.close()
    places = {point["x"]: point["name"] for point in found["points"] if point["y"] == 1}
    assert sorted(places.values()) == [f"rail {rail}" for rail in range(6)]
    kinds, owners = np.array(cluster.links.kind), cluster.links.owner
    seen = set()
    for begin, bottom, end, _, busy in found["lines"]:
        if bottom == 0:
            node, rail = int(begin - 1) // 4, int(places[end].removeprefix("rail "))
            assert rail // 3 == node // 2
            mine = (owners == node * 3 + rail % 3) & np.isin(kinds, ("nic_in", "nic_out"))
            assert busy == pytest.approx(run.dispatch.busy[mine].max(), rel=1e-6)
            seen.add((node, rail))
    assert len(seen) == 4 * 3


def test_light_and_dark(page: Any) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    ink = "document.querySelector('#contenders .ytick text').style.fill"
    light = page.evaluate(paper), page.evaluate(ink)
    page.emulate_media(color_scheme="dark")
    until(page, f"{ink} !== '{light[1]}'")
    dark = page.evaluate(paper), page.evaluate(ink)
    assert dark[0] != light[0]
    page.click("#theme")
    assert (page.evaluate(paper), page.evaluate(ink)) == light
    page.click("#theme")
    assert (page.evaluate(paper), page.evaluate(ink)) == dark


def test_paper_has_every_view(page: Any) -> None:
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    for view in ("overview", "cluster", "timeline", "traffic", "stages", "numbers"):
        assert page.locator(f"#{view}").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert page.locator("[role=tabpanel]:visible").count() == 1


@pytest.mark.nightly
def test_a_thousand_ranks(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write(make_record(num_nodes=128, ranks_per_node=8), path)
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    page.goto(path.as_uri())
    page.click("#tab-timeline")
    page.locator("#busy").scroll_into_view_if_needed()
    box = page.locator("#busy .nsewdrag").first.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] * 64.5 / 128)
    assert int(page.locator("#rank-name").text_content()) // 8 == 64
    page.close()
