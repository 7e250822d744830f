"""The verdict with other links: an arm alone, half the lanes, a stated link, another machine's."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conftest import Studied
from linkbound.cli.main import run
from linkbound.errors import UsageError
from linkbound.evidence.study import Study
from linkbound.evidence.types import Provenance
from linkbound.links import Arm, Operation
from linkbound.model.types import Load
from linkbound.predict.book import CurveBook
from linkbound.predict.supposed import DIRECT, HalvedBook, OtherMachineBook, stated_direct
from linkbound.predict.types import Estimate, Forecast
from linkbound.study.cases import cases
from linkbound.study.predicting import book_of
from linkbound.study.supposing import parse_link
from linkbound.units import parse_rate_bytes_per_s
from linkbound.verdict.decide import decide
from linkbound.verdict.what_if import what_if
from machines_made import EIGHT, PCIE_PAIR, write

PAIR = ("GPU0", "GPU1")
SMALL, LARGE = 8 * 1024, 64 * 1024**2
CALL = Operation.ALL_REDUCE


def asked(studied: Studied, capsys: Any, *words: str) -> Any:
    capsys.readouterr()
    assert run(["verdict", "-C", str(studied.path), *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def plans_of(question: Any) -> dict[tuple[str, str | None], Any]:
    return {(one["split"], one["arm"]): one for one in question["plans"]}


def test_one_arm_alone_is_the_verdict_of_its_plans(studied: Studied, capsys: Any) -> None:
    found = asked(studied, capsys, "--what-if", "staged", "--what-if", "p2p")
    assert found["schema"] == "linkbound.what_if"
    assert found["provenance"] == "predicted, links stated"
    assert len(found["questions"]) == 6  # three loads, two questions each
    for question in found["questions"]:
        only = "staged" if question["supposed"].startswith("only arm staged") else "p2p"
        for (_, arm), one in plans_of(question).items():
            assert (one["then"] is None) is (arm != only)
            if arm == only:
                # Its curves are those of now, and so is its answer.
                assert one["then"] == one["now"]
                assert one["gain_then"] == one["gain_now"]
    (many,) = [
        one
        for one in found["questions"]
        if one["load"]["concurrency"] == 32 and one["supposed"].startswith("only arm staged")
    ]
    assert many["then"]["answer"] == "reject"


def test_a_link_as_fast_as_none_changes_direct_plans_alone(studied: Studied, capsys: Any) -> None:
    fast = asked(studied, capsys, "--link", "0us,100TB/s")["questions"]
    slow = asked(studied, capsys, "--link", "1ms,1MB/s")["questions"]
    for question, better in ((fast, True), (slow, False)):
        for one in question:
            plans = plans_of(one)
            for (split, arm), plan in plans.items():
                if plan["gain_now"] is None or split != "tp2":
                    continue
                now, then = plan["gain_now"]["value"], plan["gain_then"]["value"]
                if arm == "staged":
                    assert then == pytest.approx(now)
                else:
                    assert (then > now) is better
    # One request still gains when staged: that path is as it was.
    assert [one["then"]["answer"] for one in slow if one["load"]["concurrency"] > 1] == [
        "reject",
        "reject",
    ]
    for one in slow:
        for (_, arm), plan in plans_of(one).items():
            assert arm == "staged" or plan["then"] == "reject"


def test_half_the_lanes_is_never_faster(studied: Studied, capsys: Any) -> None:
    for question in asked(studied, capsys, "--what-if", "half-lanes")["questions"]:
        for plan in question["plans"]:
            if plan["gain_now"] is not None and plan["baseline"] in ("one GPU", "2 replicas"):
                assert plan["gain_then"]["value"] <= plan["gain_now"]["value"] * 1.0001


def test_the_links_of_another_machine(studied: Studied, tmp_path: Path, capsys: Any) -> None:
    other = str(write(tmp_path, PCIE_PAIR))
    same = asked(studied, capsys, "--links-of", "h200-pair")["questions"]
    for question in same:
        for plan in question["plans"]:
            if plan["gain_now"] is not None:
                assert plan["gain_then"]["value"] == pytest.approx(plan["gain_now"]["value"])
    slower = asked(studied, capsys, "--links-of", other)["questions"]
    for question in slower:
        assert question["supposed"] == f"direct links as on {other}"
        plan = plans_of(question)["tp2", "nccl"]
        assert plan["gain_then"]["value"] < plan["gain_now"]["value"]


def test_an_arm_that_nobody_timed_is_open_and_no_reason_against_splits(
    studied: Studied, capsys: Any
) -> None:
    for question in asked(studied, capsys, "--what-if", "net")["questions"]:
        assert question["then"]["answer"] == "undecided"
        for key in (("tp2", "net"), ("pp2", "net")):
            plan = plans_of(question)[key]
            assert (plan["now"], plan["then"], plan["gain_then"]) == (None, "undecided", None)
            assert plan["reason"]["code"] == "no-curve"
            assert "in arm net" in plan["reason"]["text"]
    assert run(["verdict", "-C", str(studied.path), "--what-if", "net"]) == 0
    assert "  tp2, net: No time is known for all_reduce" in capsys.readouterr().out


def test_a_pipeline_over_nccl_is_the_pipeline_over_direct_links(
    studied: Studied, capsys: Any
) -> None:
    for question in asked(studied, capsys, "--what-if", "nccl")["questions"]:
        plans = plans_of(question)
        assert plans["pp2", "nccl"]["gain_then"] == plans["pp2", "p2p"]["gain_now"]


def test_the_links_of_a_machine_are_those_of_the_gpus_that_splits_use_there(
    studied: Studied, capsys: Any
) -> None:
    """The desktop's GPU0 is of another model and reaches no other GPU."""
    for question in asked(studied, capsys, "--links-of", "5060ti-pair")["questions"]:
        plan = plans_of(question)["tp2", "p2p"]
        assert (plan["then"], plan["reason"]) == ("reject", None)
        assert 0.05 < plan["gain_then"]["value"] < 0.7


def test_plans_whose_links_stay_keep_the_times_of_the_case(studied: Studied) -> None:
    """What groups that share a path do is in the case alone; staged plans lost it."""
    load = Load(prompt_tokens=1024, output_tokens=65, concurrency=8)
    with Study.open(studied.path) as study:
        (one,) = cases(study, "h200-pair", "llama-3.1-8b", [load], 0.05)
        case = msgspec.structs.replace(
            one.case, forecasts=tuple(map(slower_staged, one.case.forecasts))
        )
        link = stated_direct(one.engine.book, 5e-6, 400e9)
        found = what_if(case, one.engine, decide(case), "a link", tuple(Arm), link, DIRECT)
    staged = [plan for plan in found.plans if plan.plan.arm is Arm.STAGED]
    assert len(staged) == 2
    for plan in staged:
        assert plan.gain_then == plan.gain_now
        assert plan.gain_then is not None
        assert plan.gain_then.value < 0.7


def slower_staged(found: Forecast) -> Forecast:
    if found.plan.arm is not Arm.STAGED:
        return found
    time = found.latency_s
    slower = Estimate(value=2 * time.value, low=2 * time.low, high=2 * time.high)
    return msgspec.structs.replace(found, latency_s=slower)


def test_of_many_plans_those_in_the_question_come_first(tmp_path: Path, capsys: Any) -> None:
    made = write(tmp_path, EIGHT)
    path = tmp_path / "eight.linkbound"
    words = ["study", "llama-3.1-70b", "--machine", str(made), "-q", "-C", str(path)]
    assert run([*words, "--concurrency", "8"]) == 0
    capsys.readouterr()
    assert run(["verdict", "-C", str(path), "--what-if", "net"]) == 0
    lines = capsys.readouterr().out.partition("only arm net")[2].splitlines()
    assert lines[4].startswith("  tp2, net ")


def test_the_document_has_where_answers_turn(studied: Studied, capsys: Any) -> None:
    first = asked(studied, capsys, "--what-if", "half-lanes")["questions"][0]
    turns = plans_of(first)["tp2", "p2p"]["break_even_now"]
    assert turns["baseline"] == "one GPU"
    assert turns["bytes_per_s"] == pytest.approx(7.6e9, rel=0.1)
    assert turns["latency_s"] == pytest.approx(16.8e-6, rel=0.1)
    assert plans_of(first)["tp2", "staged"]["break_even_now"] is None


def test_the_text_marks_it_as_predicted_and_shows_where_answers_turn(
    studied: Studied, capsys: Any
) -> None:
    assert run(["verdict", "-C", str(studied.path), "--what-if", "half-lanes"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Predicted; the links are what each question says: llama-3.1-8b on ")
    assert "What if: every link has half its lanes, and the same latency" in out
    assert "  now   KEEP: 1,024 in, 65 out, 1 at once: keep tp2, p2p." in out
    assert "Where an answer of now turns:" in out
    assert "tp2, p2p turns over " in out


def test_questions_and_gates_do_not_mix(studied: Studied, capsys: Any) -> None:
    for words, said in (
        (["--what-if", "staged", "--gate"], "--gate has no effect on a question."),
        (["--min-gain", "0.1"], "--min-gain has no effect on verdicts that are made."),
        (["--link", "5us"], "--link '5us' is no latency and rate."),
        (["--link", "5us,fast"], "'fast' is not a rate."),
        (["--links-of", "no-such-machine"], "There is no recorded machine 'no-such-machine'."),
    ):
        assert run(["verdict", "-C", str(studied.path), *words]) == 2
        assert said in capsys.readouterr().err


def test_a_question_writes_nothing(studied: Studied, tmp_path: Path) -> None:
    path = studied.copy(tmp_path)
    before = path.read_bytes()
    assert run(["verdict", "-C", str(path), "--what-if", "staged"]) == 0
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "expected"),
    [("200GB/s", 200e9), ("1.5 GiB/s", 1.5 * 2**30), ("12MB/s", 12e6), ("3 tb/s", 3e12)],
)
def test_rates(text: str, expected: float) -> None:
    assert parse_rate_bytes_per_s(text) == expected


@pytest.mark.parametrize("text", ["200", "GB/s", "0GB/s", "-1GB/s", "1" * 30 + "GB/s", "5us"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(UsageError, match="is not a rate"):
        parse_rate_bytes_per_s(text)


def test_a_link_in_words() -> None:
    assert parse_link("5us,200GB/s") == (pytest.approx(5e-6), 200e9)


def book(study: Study) -> CurveBook:
    return book_of(study, "h200-pair")


def test_half_the_lanes_of_a_curve(h200_study: Study) -> None:
    """The least of a call stays, all beyond it doubles."""
    whole, half = book(h200_study), HalvedBook(book(h200_study))
    for arm in (Arm.NCCL, Arm.STAGED):
        for size in (SMALL, LARGE):
            now, then = whole.read(CALL, PAIR, arm, size), half.read(CALL, PAIR, arm, size)
            assert now is not None
            assert then is not None
            least = now[1].points[0].time_s
            assert then[0].time_s == pytest.approx(least + 2 * (now[0].time_s - least))
            assert then[0].low_s <= then[0].time_s <= then[0].high_s
            assert then[0].provenance is Provenance.STATED
            assert then[1].source.startswith("half the lanes of: ")


def test_a_stated_link_leaves_staging_as_it_was(h200_study: Study) -> None:
    whole = book(h200_study)
    stated = stated_direct(whole, 5e-6, 200e9)
    direct = stated.read(CALL, PAIR, Arm.P2P, LARGE)
    assert direct is not None
    assert direct[0].time_s == pytest.approx(5e-6 + LARGE / 200e9)
    assert direct[0].provenance is Provenance.STATED
    staged, now = (
        stated.read(CALL, PAIR, Arm.STAGED, LARGE),
        whole.read(CALL, PAIR, Arm.STAGED, LARGE),
    )
    assert staged == now


def test_another_machine_with_too_few_gpus_has_no_time(h200_study: Study) -> None:
    other = OtherMachineBook(book(h200_study), book(h200_study), PAIR, "h200-pair")
    found = other.read(CALL, ("a", "b"), Arm.NCCL, LARGE)
    assert found is not None
    assert found[1].source.startswith("as on h200-pair: ")
    assert other.read(CALL, ("a", "b", "c"), Arm.NCCL, LARGE) is None
