"""Verdicts of a study with other links than are there (D5)."""

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from linkbound.errors import UsageError
from linkbound.evidence.study import Study
from linkbound.links.arms import MEANING
from linkbound.links.types import Arm
from linkbound.model.types import Load
from linkbound.predict.book import CurveBook
from linkbound.predict.candidates import excluded_gpus
from linkbound.predict.supposed import (
    DIRECT,
    HalvedBook,
    OtherMachineBook,
    SupposedBook,
    stated_direct,
)
from linkbound.study.cases import StudiedCase, cases
from linkbound.study.predicting import book_of
from linkbound.study.reading import read_access
from linkbound.study.sources import read_sources
from linkbound.study.stages import run_machine_stages
from linkbound.study.verdicts import judge, with_break_even
from linkbound.units import format_rate, format_time, parse_duration_s, parse_rate_bytes_per_s
from linkbound.verdict.what_if import WhatIf, what_if

HALF_LANES = "half-lanes"


class Question(NamedTuple):
    """What is supposed of the links: one of these."""

    arm: Arm | None = None
    """Only this arm is open."""
    half: bool = False
    link: tuple[float, float] | None = None
    """Latency in seconds and bytes a second each way, of the direct arms."""
    other: str | None = None
    """Direct arms as on this machine, by name or path."""


def parse_link(text: str) -> tuple[float, float]:
    """`5us,200GB/s`. Raises UsageError."""
    latency, comma, rate = text.partition(",")
    if not comma:
        raise UsageError(
            f"--link '{text}' is no latency and rate.",
            why="A call takes the latency, and its bytes the rate.",
            hint="Write --link 5us,200GB/s.",
        )
    return parse_duration_s(latency), parse_rate_bytes_per_s(rate)


def suppose(
    study: Study,
    machine: str,
    model: str,
    loads: Iterable[Load],
    questions: Iterable[Question],
    min_gain: float,
) -> tuple[WhatIf, ...]:
    """Each question for each load. Raises InputError or UsageError for another machine."""
    asked = [(question, _curves(question)) for question in questions]
    found = []
    for one in cases(study, machine, model, loads, min_gain):
        now = with_break_even(judge(one), one.case, one.engine)
        for question, there in asked:
            words, arms, book, changed = _supposed(question, one, there)
            found.append(what_if(one.case, one.engine, now, words, arms, book, changed))
    return tuple(found)


class _Other(NamedTuple):
    """Curves of another machine, and its GPUs that splits use."""

    book: CurveBook
    gpus: tuple[str, ...]


def _curves(question: Question) -> _Other | None:
    """The other machine's, if one is named."""
    if question.other is None:
        return None
    sources = read_sources(question.other)
    with (
        TemporaryDirectory() as folder,
        Study.create(Path(folder) / "other.linkbound") as study,
    ):
        run_machine_stages(study, sources)
        book = book_of(study, sources.name)
        excluded = excluded_gpus(book.machine, read_access(study, sources.name))
    labels = (gpu.label for gpu in book.machine.gpus)
    return _Other(book=book, gpus=tuple(one for one in labels if one not in excluded))


def _supposed(
    question: Question, one: StudiedCase, there: _Other | None
) -> tuple[str, tuple[Arm, ...], CurveBook | None, tuple[Arm, ...]]:
    """The question in words, the arms that it leaves, the book that answers, for which of them."""
    book = one.engine.book
    every = tuple(Arm)
    if question.arm is not None:
        return f"only arm {question.arm.value}: {MEANING[question.arm]}", (question.arm,), None, ()
    if question.half:
        return "every link has half its lanes, and the same latency", every, HalvedBook(book), every
    if question.link is not None:
        latency_s, rate = question.link
        words = f"direct links of {format_time(latency_s)} and {format_rate(rate)} each way"
        return words, every, stated_direct(book, latency_s, rate), DIRECT
    assert question.other is not None
    assert there is not None
    other = OtherMachineBook(book, there.book, there.gpus, question.other)
    return f"direct links as on {question.other}", every, SupposedBook(book, other, DIRECT), DIRECT
