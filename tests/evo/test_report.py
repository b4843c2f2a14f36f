from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from evo.errors import ConfigError
from evo.genome import Genome
from evo.tracking.charts import Point, factor_ticks, line_chart, nice_ticks
from evo.tracking.files import OUTCOME_FILE, read_outcome, write_run_files
from evo.tracking.report import render_report
from tests.evo.fakes import (
    FakeArchive,
    make_candidate,
    make_confirm_rows,
    make_elite,
    make_run_info,
    make_summary,
)

ATTACK = "<img src=x onerror=alert(1)>\"'&</script><script>alert(2)</script>"


class Page(HTMLParser):
    """Collects tags, attributes and text; refuses badly nested blocks."""

    VOID = ("meta", "br", "img")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def words(page: str) -> str:
    return " ".join(" ".join(Page(page).text).split())


def test_report_tells_the_whole_story(tmp_path: Path) -> None:
    text = words(render_report(make_run_info(tmp_path), make_summary()))
    for part in (
        "softmax on opencl",
        "Row-wise softmax, numerically stable",
        "CPU time",
        "fake-cpu",
        "kelites task=softmax",
        "kernel-elites 0.1.0",
        "0123abc",
        "22 of 64 cells",
        "failed: incorrect: wrong on workload wide",
        "not shown faster",
        "wide*",
        "4 interleaved blocks from 3 fresh process(es) per elite",
        "compile_error 12",
        "budget of 300 evaluations used",
        "1.6 per second",
    ):
        assert part in text


def test_best_number_is_the_confirmed_one(tmp_path: Path) -> None:
    summary = make_summary()
    best = next(row for row in summary.confirm if row.confirmed)  # they come best first
    text = words(render_report(make_run_info(tmp_path), summary))
    assert f"confirmed, {best.candidate.id}" in text
    unconfirmed = words(render_report(make_run_info(tmp_path), replace(summary, confirm=())))
    assert "search estimate, not confirmed" in unconfirmed
    assert "No confirm pass was made" in unconfirmed
    none_held = words(
        render_report(make_run_info(tmp_path), replace(summary, confirm=summary.confirm[:2]))
    )
    assert "none confirmed" in none_held


def test_every_text_from_outside_is_escaped(tmp_path: Path) -> None:
    candidate = replace(
        make_candidate(1, operator=ATTACK, note=ATTACK, parents=(ATTACK,)),
        id=ATTACK,
        genome=Genome(template=ATTACK, template_hash="h", params={ATTACK: ATTACK}),
    )
    elite = make_elite(candidate=candidate)
    rows = make_confirm_rows([elite, elite, elite])
    info = make_run_info(
        tmp_path,
        task=ATTACK,
        command=ATTACK,
        description=ATTACK,
        git_sha=ATTACK,
        resolved_yaml=ATTACK,
        versions={ATTACK: ATTACK},
        run_name=ATTACK,
    )
    summary = make_summary(
        FakeArchive([elite]),
        confirm=[replace(row, message=ATTACK) for row in rows],
        sources={ATTACK: ATTACK},
        message=ATTACK,
        device=replace(info.device, name=ATTACK, driver=ATTACK, platform=ATTACK),
    )
    page = Page(render_report(info, summary))
    tags = [tag for tag, _ in page.tags]
    assert "img" not in tags
    assert tags.count("script") == 1
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    assert sum(ATTACK in text for text in page.text) >= 10


def test_report_fetches_nothing_and_uses_no_fragments(tmp_path: Path) -> None:
    text = render_report(make_run_info(tmp_path), make_summary())
    page = Page(text)
    for _, attrs in page.tags:
        assert not {"src", "href", "action", "id"} & set(attrs) or attrs.get("id") in (
            "elites",
            "details",
        )
    for word in ("http://", "https://", "url(", "@import", "localStorage", "fetch("):
        assert word not in text


def test_every_elite_has_a_map_cell_a_row_and_details(tmp_path: Path) -> None:
    summary = make_summary()
    page = Page(render_report(make_run_info(tmp_path), summary))
    ids = {elite.candidate.id for elite in summary.elites}
    buttons = [attrs for tag, attrs in page.tags if tag == "button" and "data-elite" in attrs]
    rows = [attrs for tag, attrs in page.tags if tag == "tr" and "data-elite" in attrs]
    details = [attrs for tag, attrs in page.tags if tag == "article"]
    assert {attrs["data-elite"] for attrs in buttons} == ids
    assert {attrs["data-elite"] for attrs in rows} == ids
    assert {attrs["data-detail"] for attrs in details} == ids
    assert len(buttons) == len(details) == len(ids)


def test_an_empty_run_still_reports(tmp_path: Path) -> None:
    summary = make_summary(
        FakeArchive(), confirm=(), logbook=(), status_counts={}, evaluations=0, elapsed_s=0.0
    )
    text = words(render_report(make_run_info(tmp_path), summary))
    assert "0 of 64 cells" in text
    assert "No steps recorded." in text


def test_gaps_in_the_logbook_are_left_out(tmp_path: Path) -> None:
    logbook = [
        {"evaluations": 20.0, "coverage": 0.0, "best_mean": float("nan")},
        {"evaluations": 40.0, "coverage": 0.1, "best_mean": 0.5},
    ]
    page = render_report(make_run_info(tmp_path), make_summary(logbook=logbook))
    assert "after 40 evaluations: 1.65x" in page
    assert "after 20 evaluations: nan" not in page


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]), (0.0, 300.0, [0, 100, 200, 300]), (3, 3, [3, 4])],
)
def test_ticks_are_round_and_span_the_data(low: float, high: float, expected: list[float]) -> None:
    assert nice_ticks(low, high) == pytest.approx(expected)


def test_factor_ticks_are_powers_of_two() -> None:
    assert factor_ticks(-0.2, 1.5) == pytest.approx([-0.6931, 0, 0.6931, 1.3863, 2.0794], abs=1e-3)
    assert len(factor_ticks(-3.0, 12.0)) <= 10


def test_chart_stays_inside_its_frame() -> None:
    points = [Point(x=10.0 * i, y=0.3 * i, low=0.3 * i - 1, high=0.3 * i + 2) for i in range(9)]
    chart = line_chart(points, label="<b>", y_text=str)
    assert "<b>" not in chart
    numbers = re.findall(r"([-\d.]+),([-\d.]+)", chart)
    assert numbers
    assert all(0 <= float(x) <= 560 and 0 <= float(y) <= 230 for x, y in numbers)


PROBE = """<script>
function visible() {
  return Array.from(document.querySelectorAll("article")).filter(function (a) {
    return !a.hidden; }).map(function (a) { return a.dataset.detail; });
}
function order() {
  return Array.from(document.querySelectorAll("#elites tbody tr")).map(function (r) {
    return r.dataset.elite; });
}
var result = {first: visible(), before: order()};
document.querySelectorAll("button[data-elite]")[3].click();
result.clicked = document.querySelectorAll("button[data-elite]")[3].dataset.elite;
result.then = visible();
document.querySelectorAll("#elites th button")[0].click();
result.down = order();
document.querySelectorAll("#elites th button")[0].click();
result.up = order();
parent.postMessage(JSON.stringify(result), "*");
</script>"""

FRAME = """<!doctype html><pre id="result"></pre><script>
addEventListener("message", function (event) {
  document.getElementById("result").textContent = "RESULT" + event.data + "END"; });
</script><iframe sandbox="allow-scripts" srcdoc="%s"></iframe>"""


def test_report_works_in_a_browser_inside_a_sandboxed_frame(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium on PATH (apt-get install chromium)")
    summary = make_summary()
    page = render_report(make_run_info(tmp_path), summary)
    page = page.replace("</body>", PROBE + "</body>")
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME % html.escape(page), encoding="utf-8")
    shown = subprocess.run(
        [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu"),
            *(f"--user-data-dir={tmp_path}/profile", "--virtual-time-budget=5000"),
            *("--dump-dom", frame.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    found = re.search(r"RESULT(.*?)END", shown)
    assert found, "the page's script did not run to its end"
    result: dict[str, Any] = json.loads(html.unescape(found.group(1)))
    ranked = sorted(summary.elites, key=lambda elite: -elite.objective.low)
    assert result["first"] == [ranked[0].candidate.id]
    assert result["before"] == [elite.candidate.id for elite in ranked]
    assert result["then"] == [result["clicked"]]
    assert result["up"] == sorted(result["before"])
    assert result["down"] == sorted(result["before"], reverse=True)


# --- the run folder ------------------------------------------------------------------------------


def test_run_files_and_their_way_back(tmp_path: Path) -> None:
    info = make_run_info(tmp_path, config={"seed": 7, "path": tmp_path})
    summary = make_summary()
    write_run_files(info, summary)
    write_run_files(info, summary)  # a resumed run ends a second time
    assert {path.name for path in tmp_path.iterdir()} == {
        *("outcome.json", "report.html", "heatmap.png", "archive.csv", "confirm.json", "elites")
    }
    assert len(list((tmp_path / "elites").glob("c*.cl"))) == len(summary.elites)
    read_info, read_summary = read_outcome(tmp_path)
    assert read_info == replace(info, config={"seed": 7, "path": str(tmp_path)})
    assert read_summary == summary
    assert render_report(read_info, read_summary) == render_report(info, summary)


def test_damaged_outcomes_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_outcome(tmp_path)
    for text in ("{", "[]", '{"schema": "kelites-outcome-1"}'):
        (tmp_path / OUTCOME_FILE).write_text(text)
        with pytest.raises(ConfigError, match="cannot be read"):
            read_outcome(tmp_path)
    (tmp_path / OUTCOME_FILE).write_text('{"schema": "kelites-outcome-0"}')
    with pytest.raises(ConfigError, match="this version reads 'kelites-outcome-1'"):
        read_outcome(tmp_path)
