"""Measured steps on the page: rows over time from pieces that are chosen, and the table."""

import json
import re
from importlib import resources

import jsonschema
import msgspec
from sample_report import record_id, sample_report

from linkbound.profile.decompose import Parts
from linkbound.profile.pieces import Piece, PieceKind, RankPieces, StepPieces
from linkbound.profile.types import Point
from linkbound.report.document import render_json
from linkbound.report.html import render_html
from linkbound.report.page.timeline import LEFT, Group, timeline
from linkbound.report.types import (
    EffectShown,
    Evidence,
    ProfileShown,
    Report,
    StepShown,
    TimelineShown,
)
from linkbound.splits.types import Phase

POINT = Point(phase=Phase.DECODE, batch=32, tokens=1, context=1024)
HEIGHT = 22


def rank(number: int, *pieces: tuple[PieceKind, float, float], end_s: float = 1.0) -> RankPieces:
    return RankPieces(
        rank=number,
        end_s=end_s,
        pieces=tuple(Piece(kind=kind, start_s=low, end_s=high) for kind, low, high in pieces),
    )


def calls(count: int) -> tuple[tuple[PieceKind, float, float], ...]:
    each = 1.0 / count
    return tuple(
        (kind, (at + low) * each, (at + high) * each)
        for at in range(count)
        for kind, low, high in (
            (PieceKind.COMPUTE, 0.0, 0.7), (PieceKind.WAITING, 0.7, 0.8), (PieceKind.WIRE, 0.8, 1.0)
        )
    )  # fmt: skip


def profiled(*, aligned: bool = True) -> Report:
    record = record_id("profile")
    parts = Parts(
        step_s=0.0043, compute_s=0.0034, communication_s=0.0006, waiting_s=0.0001, unmatched_s=0.0,
        host_copy_s=0.0, gap_s=0.0002,
    )  # fmt: skip
    step = StepShown(
        name="tp2, p2p", point=POINT, step_s=0.0042, low_s=0.00415, high_s=0.0043, repeats=2,
        parts=parts, unexplained_s=-0.0001, tokens_per_s=7760.0, bus_bytes_per_s=37.3e9,
        eager_because="the <host> asks", record_ids=(record,),
    )  # fmt: skip
    ranks = (rank(0, *calls(40)), rank(1, *calls(40)))
    shown = ProfileShown(
        steps=(step,),
        effects=(EffectShown(text="tp2 is faster <b>", record_ids=(record,)),),
        timelines=(
            TimelineShown(
                name="tp2, p2p",
                point=POINT,
                step=StepPieces(ranks=ranks, aligned=aligned),
                record_ids=(record,),
            ),
        ),
    )
    listed = Evidence(
        id=record, kind="profile.parts", subject={}, outcome="derived", method="m", summary="s"
    )
    report = sample_report()
    return msgspec.structs.replace(report, profile=shown, evidence=(*report.evidence, listed))


def test_a_column_is_stacked_by_shares() -> None:
    """A step of two seconds: one computes, the other is half wire and half nothing."""
    group = Group(
        name="tp2",
        ranks=(rank(0, (PieceKind.COMPUTE, 0.0, 1.0), (PieceKind.WIRE, 1.0, 1.5), end_s=2.0),),
        start_s=0.0,
        span_s=2.0,
        label="2 s",
    )
    picture = timeline("title", [group], 1.0, "s")
    strokes = re.findall(r"M(\d+) (\d+)h(\d+)v(\d+)H\d+z", picture)
    compute, wire = ([int(one) for one in found] for found in strokes)
    assert compute == [LEFT, 8, 340, HEIGHT]
    assert wire == [LEFT + 340, 8, 170, HEIGHT]


def test_a_column_with_several_pieces_is_shared_by_height() -> None:
    halves = [(PieceKind.COMPUTE, at / 1000, (at + 0.5) / 1000) for at in range(1000)]
    group = Group(name="x", ranks=(rank(0, *halves),), start_s=0.0, span_s=1.0, label="")
    heights = {int(one) for one in re.findall(r"h\d+v(\d+)H", timeline("t", [group], 1.0, "s"))}
    assert heights <= set(range(HEIGHT // 2 - 4, HEIGHT // 2 + 5))


def test_the_page_has_pictures_sentences_and_parts() -> None:
    page = render_html(profiled())
    content = page[page.index('<section id="profile">') :]
    content = content[: content.index("</section>")]
    assert '<a href="#profile">' in page
    assert "One step, decode 32 after 1,024" in content
    assert "4 calls in the middle of decode 32 after 1,024" in content
    assert "could not be compared" not in content
    assert "tp2 is faster &lt;b&gt;" in content
    assert "the &lt;host&gt; asks" in content
    for cell in ("4.20 ms", "4.15 ms - 4.30 ms", "3.40 ms", "600 us", "-2.4%", "7,760", "37.3"):
        assert f">{cell}</td>" in content
    assert "not in this study" not in content


def test_rows_on_clocks_of_their_own_say_so() -> None:
    assert "The clocks of tp2, p2p could not be compared" in render_html(profiled(aligned=False))


def test_a_study_without_a_profile_has_no_such_section() -> None:
    assert '<section id="profile">' not in render_html(sample_report())


def test_the_document_has_steps_and_is_valid() -> None:
    path = resources.files("linkbound.report") / "report.schema.json"
    document = json.loads(render_json(profiled()))
    jsonschema.Draft202012Validator(json.loads(path.read_text())).validate(document)
    (step,) = document["profile"]["steps"]
    assert step["parts"]["waiting_s"] == 0.0001
    assert document["profile_reason"] is None
    assert json.loads(render_json(sample_report()))["profile_reason"]["code"] == "not_profiled"
