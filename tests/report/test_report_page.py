"""The page: nothing from outside, everything escaped, every linked record on it."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from sample_report import record_id, sample_report

from linkbound.evidence.types import Provenance
from linkbound.links import Arm
from linkbound.report.html import render_html
from linkbound.report.page import links, machine
from linkbound.report.page.markup import Citations, esc
from linkbound.report.types import Report
from linkbound.report.words import leading_reasons

SECTIONS = (
    "verdict", "machine", "plans", "comparisons", "steps", "map", "memory", "crossings",
    "matrices", "curves", "score", "break-even", "findings", "not-known", "would-change",
    "commands", "constants", "evidence", "environment", "cautions",
)  # fmt: skip
NASTY = "</script><script>alert(1)</script>\"'&\x1b[31m\u202e"
VOID = {"meta", "rect", "line", "circle", "path", "polyline", "polygon", "br"}


@pytest.fixture(scope="module")
def page() -> str:
    return render_html(sample_report())


class _Reader(HTMLParser):
    """Tags with attributes, and whether each that opens is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.stack: list[str] = []
        self.crossed: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.stack or self.stack.pop() != tag:
            self.crossed.append(tag)


def _read(page: str) -> _Reader:
    reader = _Reader()
    reader.feed(page)
    return reader


def test_tags_nest(page: str) -> None:
    reader = _read(page)
    assert reader.crossed == []
    assert reader.stack == []


def test_nothing_is_fetched_from_outside(page: str) -> None:
    for tag, attributes in _read(page).tags:
        for name in ("src", "href", "action", "data", "srcset", "xlink:href", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith("#"), (tag, name, value)
        assert not [name for name in attributes if name.startswith("on")], tag
    assert not re.search(r"url\(\s*['\"]?(?!#)", page)
    assert "@import" not in page
    assert [tag for tag, _ in _read(page).tags if tag in ("link", "iframe", "img", "object")] == []


def test_the_policy_forbids_the_network_and_scripts(page: str) -> None:
    policies = [
        attributes["content"]
        for tag, attributes in _read(page).tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]
    scripts = [attributes for tag, attributes in _read(page).tags if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "data"}]


def test_sections_come_in_the_order_of_questions(page: str) -> None:
    assert tuple(re.findall(r'<section id="([^"]+)"', page)) == SECTIONS


def test_every_link_resolves_and_every_section_cites(page: str) -> None:
    reader = _read(page)
    anchors = [found["id"] for _, found in reader.tags if found.get("id")]
    targets = {found["href"] for tag, found in reader.tags if tag == "a"}
    assert len(anchors) == len(set(anchors))
    assert {str(one)[1:] for one in targets} <= set(anchors)
    assert f"#r-{record_id('runs')[:16]}" in targets
    for name in ("verdict", "machine", "matrices", "curves", "plans", "comparisons", "steps",
                 "map", "memory", "crossings", "score", "break-even", "findings"):  # fmt: skip
        body = re.search(rf'<section id="{name}".*?</section>', page, re.DOTALL)
        assert body is not None
        assert 'href="#r-' in body[0], name


def test_a_record_that_the_study_lacks_is_not_linked() -> None:
    cite = Citations(("a" * 64,))
    assert 'href="#r-' + "a" * 16 in cite(["a" * 64])
    assert "href" not in cite(["b" * 64])
    assert "not in this study" in cite(["b" * 64])
    assert "no record" in cite([])


def test_what_comes_from_outside_is_escaped() -> None:
    report = sample_report()
    gpu = msgspec.structs.replace(report.machine.gpus[0], model=NASTY)
    curve = report.curves[0]
    key = msgspec.structs.replace(curve.curve.key, method=NASTY)
    nasty = msgspec.structs.replace(
        report,
        machine_name=NASTY,
        machine_note=NASTY,
        shape=msgspec.structs.replace(report.shape, name=NASTY, gaps=(NASTY,)),
        machine=msgspec.structs.replace(
            report.machine, gpus=(gpu, *report.machine.gpus[1:]), sources=(NASTY,)
        ),
        curves=(
            msgspec.structs.replace(curve, curve=msgspec.structs.replace(curve.curve, key=key)),
        ),
        excluded={NASTY: NASTY},
        findings=(msgspec.structs.replace(report.findings[0], seen=NASTY, code=NASTY),),
        not_known=(NASTY,),
        commands=(NASTY,),
        study_path=NASTY,
        evidence=(msgspec.structs.replace(report.evidence[0], summary=NASTY, kind=NASTY),),
        versions={NASTY: NASTY},
    )
    page = render_html(nasty)
    reader = _read(page)
    assert reader.crossed == []
    assert [tag for tag, _ in reader.tags if tag == "script"] == ["script"]
    assert "alert(1)</script>" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "\\u202e" in page


def test_escape_spells_out_what_cannot_be_seen() -> None:
    assert esc("<a href='x'>\u202e\x1b") == "&lt;a href=&#x27;x&#x27;&gt;\\u202e\\u001b"


def test_data_is_inlined_once_and_can_be_read(page: str) -> None:
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert len(found) == 1
    assert "<" not in found[0]
    document = json.loads(found[0])
    assert document["schema"] == "linkbound.report"
    assert all(len(one) == 16 for one in document["loads"][0]["record_ids"])
    assert document["loads"][0]["verdict"]["answer"] in ("keep", "reject", "undecided")


def test_equal_reports_give_equal_bytes_below_the_budget(page: str) -> None:
    assert render_html(sample_report()) == page
    assert len(page.encode()) < 500_000


def test_headers_have_a_scope_and_pictures_a_title(page: str) -> None:
    assert all(
        found.get("scope") in ("col", "row") for tag, found in _read(page).tags if tag == "th"
    )
    pictures = re.findall(r"<svg\b[^>]*>(?:<title>[^<]+</title>|\s*<title )?", page)
    assert len(pictures) > 20
    for picture in pictures:
        assert "<title" in picture or 'aria-hidden="true"' in picture


def test_no_cell_stands_for_absence_with_nothing(page: str) -> None:
    assert not re.search(r"<t[dh][^>]*></t[dh]>", page)
    body = page.split('<script type="application/json"')[0]
    assert not re.search(r">\s*(nan|NaN|inf|None|N/A)\s*<", body)


def test_intervals_are_drawn_around_their_value(page: str) -> None:
    drawn = re.findall(
        r'<rect class="reach [^"]*" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"[^>]*/>'
        r'<line class="middle [^"]*" x1="([\d.]+)"',
        page,
    )
    forecasts = sum(len(load.forecasts) for load in sample_report().loads)
    assert len(drawn) == forecasts == 14
    for low, width, value in drawn:
        assert float(low) - 0.1 <= float(value) <= float(low) + float(width) + 0.1


def test_predicted_curves_are_dashed_and_have_no_marks() -> None:
    report = sample_report()
    first = report.curves[0]
    prior = msgspec.structs.replace(first.curve, provenance=Provenance.PRIOR)
    shown = msgspec.structs.replace(first, curve=prior)
    drawn = links.curves(
        msgspec.structs.replace(report, curves=(shown,)),
        Citations(one.id for one in report.evidence),
    )
    assert drawn.count("dashed") >= 3
    assert "<circle" not in drawn
    assert "<rect" not in drawn


def test_a_band_that_its_line_hides_is_not_drawn() -> None:
    report = sample_report()
    first = report.curves[0]
    points = first.curve.points

    def drawn(share: float) -> str:
        moved = tuple(
            msgspec.structs.replace(
                one, low_s=one.time_s * (1 - share), high_s=one.time_s * (1 + share)
            )
            for one in points
        )
        curve = msgspec.structs.replace(first.curve, points=moved)
        shown = msgspec.structs.replace(first, curve=curve)
        return links.curves(
            msgspec.structs.replace(report, curves=(shown,)),
            Citations(one.id for one in report.evidence),
        )

    assert "<polygon" in drawn(0.3)
    assert "<polygon" not in drawn(0.001)


def test_arms_of_an_operation_share_one_plot(page: str) -> None:
    figures = re.findall(r"<figure>.*?</figure>", page, re.DOTALL)
    reduce = next(one for one in figures if ">all reduce, GPU0 -&gt; GPU1<" in one)
    assert 'class="curve nccl"' in reduce
    assert 'class="curve staged"' in reduce
    assert reduce.count('<svg class="plot"') == 2


def test_a_matrix_of_unlike_paths_names_the_path_in_each_cell() -> None:
    report = sample_report()
    method = "nvbandwidth device_to_device_memcpy_read_ce"
    there, back = (one for one in report.pair_rates if one.method == method)
    rates = (
        msgspec.structs.replace(there, arm=Arm.P2P),
        msgspec.structs.replace(back, arm=Arm.STAGED, bytes_per_s=3.5e9),
    )
    drawn = machine.matrices(
        msgspec.structs.replace(report, pair_rates=rates, pair_latencies=()), Citations(())
    )
    assert '<td class="n h5">394 p2p</td>' in drawn
    assert '<td class="n h0">3.50 staged</td>' in drawn


def test_a_pair_that_nobody_timed_says_so() -> None:
    report = sample_report()
    one_way = [one for one in report.pair_rates if (one.src, one.dst) == ("GPU0", "GPU1")]
    shown = msgspec.structs.replace(report, pair_rates=tuple(one_way), pair_latencies=())
    assert '<td class="n absent">not measured</td>' in machine.matrices(shown, Citations(()))
    assert '<td class="n">not measured</td>' in machine.machine(shown, Citations(()))


def test_gpus_that_hold_the_same_share_a_bar(page: str) -> None:
    assert ">tp2, GPU0 to GPU1</text>" in page
    assert ">pp2, GPU0</text>" in page
    assert ">pp2, GPU1</text>" in page


def test_three_reasons_stand_in_the_open_and_one_is_about_the_link(page: str) -> None:
    for load in sample_report().loads:
        first = leading_reasons(load.verdict)
        assert len(first) == 3
        assert first[0] == load.verdict.reasons[0]
        assert first[2].code == "link-matters"
    opened = re.findall(r'<p class="headline">.*?</p><ul>(.*?)</ul>', page)
    assert [one.count("<li>") for one in opened] == [3, 3]


def _bare() -> Report:
    """A study that was stopped early: nearly everything is missing."""
    report = sample_report()
    load = report.loads[0]
    verdict = msgspec.structs.replace(
        load.verdict, plan=None, plans=(), reasons=(), would_change=(), measurements=()
    )
    return msgspec.structs.replace(
        report,
        curves=(),
        pair_rates=(),
        pair_latencies=(),
        fits=(),
        splits=(),
        maps=(),
        score=None,
        findings=(),
        not_known=(),
        commands=(),
        evidence=(),
        loads=(msgspec.structs.replace(load, verdict=verdict, forecasts=()),),
    )


def test_a_study_that_stopped_early_is_a_page_too() -> None:
    page = render_html(_bare())
    assert _read(page).crossed == []
    assert "no plan could be priced" in page
    assert 'href="#score"' not in page


def _chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.browser
@pytest.mark.skipif(_chromium() is None, reason="no chromium on PATH")
def test_a_browser_renders_it_without_error_or_request(page: str, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(page, encoding="utf-8")
    log = tmp_path / "net.json"
    browser = _chromium()
    assert browser is not None
    found = subprocess.run(
        [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
            "--disable-background-networking", "--disable-component-update", "--no-first-run",
            "--disable-default-apps", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}",
            f"--log-net-log={log}", "--dump-dom", file.as_uri(),
        ],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "Predictions against measurements" in found.stdout
    assert "CONSOLE" not in found.stderr
    asked = set(re.findall(r'"url":"(https?://[^"]+)"', log.read_text(encoding="utf-8")))
    own_services = re.compile(r"https?://([\w-]+\.)*(google|googleapis|gvt1|gstatic)\.com/")
    assert {one for one in asked if not own_services.match(one)} == set()
