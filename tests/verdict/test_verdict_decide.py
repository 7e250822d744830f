"""Keep, reject, undecided: the table of the recorded pair, and each reason on a case of its own."""

import msgspec
import pytest
from verdict_cases import ONE, PP2, TP2, TWO, case_on, fits, load, made, of_plan, spread

from linkbound.evidence.study import Study
from linkbound.evidence.types import Finding, Level, Severity
from linkbound.links import Arm
from linkbound.predict.types import Estimate, Forecast, TermKind
from linkbound.serve.plan import plan_contenders
from linkbound.splits.types import Split
from linkbound.study.reading import read_machine_record
from linkbound.verdict.compare import MIN_GAIN, answer
from linkbound.verdict.decide import Case, Unpriced, decide
from linkbound.verdict.settle import engine_measurements
from linkbound.verdict.types import Aim, Answer, Comparison, Reason, Verdict

KEEP, REJECT, UNDECIDED = Answer.KEEP, Answer.REJECT, Answer.UNDECIDED


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.05, 1.2, KEEP),
        (1.0499, 1.2, UNDECIDED),
        (0.9, 1.05, UNDECIDED),
        (0.9, 1.0499, REJECT),
        (1.06, 1.07, KEEP),
        (0.5, 0.6, REJECT),
        (0.5, 2.0, UNDECIDED),
    ],
)
def test_three_answers_at_the_line(low: float, high: float, expected: Answer) -> None:
    gain = Estimate(value=(low + high) / 2, low=low, high=high)
    assert answer(gain) is expected
    assert answer(msgspec.structs.replace(gain), 0.0) is answer(gain, min_gain=0.0)
    assert MIN_GAIN == 0.05


def test_a_stated_line() -> None:
    gain = Estimate(value=1.2, low=1.15, high=1.25)
    assert [answer(gain, line) for line in (0.0, 0.15, 0.2, 0.25, 0.3)] == [
        KEEP,
        KEEP,
        UNDECIDED,
        UNDECIDED,
        REJECT,
    ]


def test_batch_1_the_slow_path_is_enough(h200_study: Study) -> None:
    found = decide(case_on(h200_study, load(1024, 65, 1)))
    assert of_plan(found, TP2, Arm.P2P).answer is KEEP
    assert of_plan(found, TP2, Arm.STAGED).answer is KEEP
    aims = [one.aim for one in of_plan(found, TP2, Arm.STAGED).comparisons]
    # A single request leaves nothing for a second replica.
    assert aims == [Aim.LATENCY]
    assert found.answer is KEEP
    assert found.plan is not None
    assert found.plan.name == "tp2, p2p"
    assert found.headline.startswith("1,024 in, 65 out, 1 at once: keep tp2, p2p. Kept: ")


def test_batch_8_the_link_decides(h200_study: Study) -> None:
    found = decide(case_on(h200_study, load(1024, 65, 8)))
    assert of_plan(found, TP2, Arm.P2P).answer is KEEP
    assert of_plan(found, TP2, Arm.STAGED).answer in (REJECT, UNDECIDED)
    assert found.answer is KEEP


def test_batch_24_two_copies_are_as_good(h200_study: Study) -> None:
    found = decide(case_on(h200_study, load(1024, 65, 24)))
    assert of_plan(found, TP2, Arm.STAGED).answer is REJECT
    by_aim = {one.aim: one for one in of_plan(found, TP2, Arm.P2P).comparisons}
    assert by_aim[Aim.LATENCY].answer is KEEP
    assert by_aim[Aim.THROUGHPUT].answer is UNDECIDED
    assert by_aim[Aim.THROUGHPUT].baseline.split == TWO
    assert found.answer is UNDECIDED
    assert found.plan is not None
    assert found.plan.split == TWO
    assert found.measurements
    assert any("2 replicas" in one.what for one in found.measurements)


def test_batch_32_two_copies_are_not_beaten(h200_study: Study) -> None:
    found = decide(case_on(h200_study, load(1024, 65, 32)))
    for arm in (Arm.P2P, Arm.NCCL, Arm.STAGED):
        by_aim = {one.aim: one for one in of_plan(found, TP2, arm).comparisons}
        assert by_aim[Aim.LATENCY].answer is (REJECT if arm is Arm.STAGED else KEEP)
        assert by_aim[Aim.THROUGHPUT].answer is REJECT
        assert by_aim[Aim.THROUGHPUT].baseline.split == TWO
    assert found.answer is REJECT
    assert found.plan is not None
    assert found.plan.split == TWO
    assert not found.measurements


def test_128_short_prompts_replicas_win_throughput(h200_study: Study) -> None:
    found = decide(case_on(h200_study, load(128, 65, 128)))
    for arm in (Arm.P2P, Arm.NCCL, Arm.STAGED):
        by_aim = {one.aim: one for one in of_plan(found, TP2, arm).comparisons}
        gain = by_aim[Aim.THROUGHPUT].gain
        assert gain is not None
        assert gain.value < 1
        assert by_aim[Aim.THROUGHPUT].answer is not KEEP
    assert found.answer is not KEEP
    assert found.plan is not None
    assert found.plan.split == TWO
    staged = of_plan(found, TP2, Arm.STAGED)
    assert staged.answer is REJECT
    assert "replicas-better" in [reason.code for reason in staged.reasons]


def test_every_reason_has_a_text_and_the_gains_are_inside_their_intervals(
    h200_study: Study,
) -> None:
    for concurrency in (1, 8, 32):
        found = decide(case_on(h200_study, load(1024, 65, concurrency)))
        for one in found.plans:
            for comparison in one.comparisons:
                assert comparison.gain is not None
                assert comparison.gain.low < comparison.gain.value < comparison.gain.high
                assert comparison.reasons
                assert all(reason.figures for reason in comparison.reasons)
                assert all(reason.record_ids for reason in comparison.reasons)


def test_on_the_desktop_only_the_split_holds_the_model(desktop_study: Study) -> None:
    found = decide(case_on(desktop_study, load(1024, 65, 1), "5060ti-pair"))
    assert found.answer is KEEP
    codes = {reason.code for one in found.plans for reason in one.reasons}
    assert codes == {"capacity-only"}
    machine = read_machine_record(desktop_study, "5060ti-pair").machine
    assert {gpu for one in found.plans for gpu in one.plan.placement.gpus} == {
        gpu.key for gpu in machine.gpus if gpu.label != "GPU0"
    }


def codes(found: Verdict, split: Split, arm: Arm) -> list[str]:
    return [reason.code for reason in of_plan(found, split, arm).reasons]


def weights(value: float, share: float = 0.0) -> dict[TermKind, Estimate]:
    return {TermKind.WEIGHTS: spread(value, share)}


def case(*forecasts: Forecast, **options: object) -> Case:
    held = tuple(dict.fromkeys(one.plan.split for one in forecasts))
    options.setdefault("fits", tuple(fits(split) for split in held))
    return Case(
        load=forecasts[0].load,
        forecasts=forecasts,
        gain_error=0.02,
        **options,  # type: ignore[arg-type]
    )


def test_replicas_better() -> None:
    found = decide(
        case(
            made(ONE, weights(2.0)),
            made(TWO, weights(1.0)),
            made(TP2, weights(1.3), arm=Arm.P2P),
        )
    )
    assert codes(found, TP2, Arm.P2P) == ["faster", "replicas-better"]
    assert (found.answer, found.plan.split) == (REJECT, TWO)  # type: ignore[union-attr]
    assert found.headline.endswith("do not split; run 2 replicas.")


def test_a_second_gpu_that_makes_it_slower() -> None:
    found = decide(case(made(ONE, weights(1.0)), made(TP2, weights(1.5), arm=Arm.STAGED)))
    assert codes(found, TP2, Arm.STAGED) == ["second-gpu-slower"]
    assert (found.answer, found.plan.split) == (REJECT, ONE)  # type: ignore[union-attr]
    (reason,) = of_plan(found, TP2, Arm.STAGED).reasons
    assert "is slower than one GPU, ~0.67x (0.65-0.68) its speed" in reason.text


def test_a_gain_below_the_line_is_too_small() -> None:
    found = decide(case(made(ONE, weights(1.01)), made(TP2, weights(1.0), arm=Arm.P2P)))
    assert codes(found, TP2, Arm.P2P) == ["gain-too-small"]
    assert found.answer is REJECT


def test_a_gain_around_the_line_names_what_would_settle_it() -> None:
    found = decide(case(made(ONE, weights(1.06)), made(TP2, weights(1.0), arm=Arm.P2P)))
    assert codes(found, TP2, Arm.P2P) == ["within-error"]
    assert found.answer is UNDECIDED
    assert found.would_change == (
        "A measured gain of tp2, p2p over one GPU answers that comparison for you if its interval "
        "lies above 1.05x, or below.",
    )
    (wanted,) = found.measurements
    assert wanted.what.startswith("One run each of tp2, p2p; one GPU")
    assert wanted.command == (
        "linkbound serve MODEL --split one --split tp2 --arm p2p --gpus 0,1 "
        "--prompt 100 --output 10 --concurrency 8"
    )
    # Two plans, two turns of each: 4 starts of 90 s, 2 x 13 calls of 8 sequences, 1.06 s and 1 s.
    assert wanted.cost == (
        "about 6.9 min: 4 starts of some 90 s, and 2 x 100 requests of each plan, about 54 s"
    )
    # It is the reader who compares: a run of the engine changes no verdict.
    assert "no verdict is made from such runs" in wanted.why
    assert not any("settles" in one for one in (*found.would_change, wanted.why))
    splits = [text.split()[0] for text in wanted.command.split("--split ")[1:]]
    runs = plan_contenders(splits, ["p2p"], None, external=False)
    assert [one.split for one in runs] == [ONE, TP2]


@pytest.mark.parametrize(
    ("split", "option"),
    [(TWO, "x2"), (PP2, "pp2"), (Split(tp=2, pp=2, replicas=2), "tp2pp2x2"), (ONE, "one")],
)
def test_the_command_names_splits_as_serve_reads_them(split: Split, option: str) -> None:
    compared = Comparison(
        aim=Aim.LATENCY,
        plan=made(Split(tp=8), weights(1.0), arm=Arm.P2P).plan,
        baseline=made(split, weights(1.0)).plan,
        gain=None,
        answer=UNDECIDED,
        reasons=(),
    )
    (wanted,) = engine_measurements([compared], load(1, 1, 1), "MODEL", {}, {})
    command = wanted.command
    assert f"--split {option} " in command
    (read,) = {one.split for one in plan_contenders([option], [], None, external=False)}
    assert read == split


@pytest.mark.parametrize(
    ("direct_s", "staged_s", "code"),
    [(1.0, 1.01, "link-does-not-matter"), (1.0, 1.5, "link-matters"), (1.0, 1.06, "link-unclear")],
)
def test_what_the_direct_link_is_worth(direct_s: float, staged_s: float, code: str) -> None:
    def crossing(seconds: float) -> dict[TermKind, Estimate]:
        return {
            TermKind.WEIGHTS: spread(0.9, 0.3),
            TermKind.CROSSINGS: spread(seconds - 0.9, 0.1),
        }

    found = decide(
        case(
            made(ONE, weights(2.0)),
            made(TP2, crossing(direct_s), arm=Arm.P2P),
            made(TP2, crossing(staged_s), arm=Arm.STAGED),
        )
    )
    assert code in [reason.code for reason in found.reasons]
    # Both arms do the same work: what is not known of it is no doubt about the link.
    (reason,) = [one for one in found.reasons if one.code == code]
    (gain,) = reason.figures
    assert gain.low is not None
    assert gain.high is not None
    assert gain.high - gain.low < 0.3 * gain.value


def test_a_split_is_kept_for_what_only_it_holds() -> None:
    found = decide(
        case(
            made(TP2, weights(1.0), arm=Arm.P2P),
            fits=(fits(ONE, fits=False), fits(TWO, fits=False), fits(TP2)),
        )
    )
    assert codes(found, TP2, Arm.P2P) == ["capacity-only"]
    assert found.answer is KEEP
    assert found.reasons[0].text == (
        "tp2 fits and leaves room for ~10,000 tokens of cache; one GPU does not: "
        "one GPU needs 40.0 GiB on GPU0, has 24.0 GiB."
    )
    (comparison,) = found.plans[0].comparisons
    assert (comparison.aim, comparison.gain) == (Aim.CAPACITY, None)
    assert comparison.baseline.placement.gpus == ("GPU0",)


def test_a_split_is_kept_for_a_batch_that_only_it_holds() -> None:
    found = decide(
        case(
            made(TP2, weights(1.0), arm=Arm.P2P, asked=load(100, 10, 64)),
            fits=(fits(ONE, batch=20), fits(TWO, batch=40), fits(TP2, batch=90)),
        )
    )
    assert codes(found, TP2, Arm.P2P) == ["capacity-only"]
    assert found.reasons[0].text == (
        "tp2 holds all 64 sequences at once; one GPU holds ~20, the rest would wait."
    )


def test_where_nothing_fits_no_split_is_rejected() -> None:
    asked = Case(
        load=load(100, 10, 1),
        forecasts=(),
        fits=(fits(ONE, fits=False), fits(TP2, fits=False)),
        gain_error=0.02,
    )
    found = decide(asked)
    assert (found.answer, found.plan, found.plans) == (UNDECIDED, None, ())
    assert found.headline == (
        "100 in, 10 out, 1 at once: nothing here runs it, neither one GPU nor a split."
    )
    assert [(one.code, one.text) for one in found.reasons] == [
        ("no-plan-holds", asked.fits[0].reason)
    ]
    assert found.would_change == ()


def test_a_plan_without_a_price_is_said() -> None:
    found = decide(case(made(ONE, weights(1.0)), unpriced=(blind(TP2, Arm.STAGED),)))
    assert found.would_change == (NO_TIME,)


def test_a_split_without_a_price_is_open_and_the_missing_curve_is_named() -> None:
    held = (fits(ONE), fits(TWO), fits(TP2))
    found = decide(
        case(
            made(ONE, weights(2.0)),
            made(TWO, weights(1.5)),
            fits=held,
            unpriced=(blind(TP2, Arm.P2P), blind(TP2, Arm.STAGED)),
        )
    )
    assert [one.answer for one in found.plans] == [UNDECIDED, UNDECIDED]
    assert codes(found, TP2, Arm.P2P) == ["no-curve"]
    assert found.answer is UNDECIDED
    assert found.headline.endswith("undecided between 2 replicas and tp2, p2p; tp2, staged.")
    (wanted,) = found.measurements
    assert wanted.command == "linkbound links"
    assert wanted.what.endswith("tp2, p2p; tp2, staged")
    assert "nccl-tests" in wanted.why


def test_a_split_without_a_price_is_kept_where_only_it_holds_the_model() -> None:
    found = decide(
        Case(
            load=load(100, 10, 8),
            forecasts=(),
            fits=(fits(ONE, fits=False), fits(TP2)),
            gain_error=0.02,
            unpriced=(blind(TP2, Arm.P2P), blind(TP2, Arm.STAGED)),
        )
    )
    assert (found.answer, found.plan.name) == (KEEP, "tp2, p2p")  # type: ignore[union-attr]
    assert codes(found, TP2, Arm.STAGED) == ["capacity-only", "no-curve"]
    assert found.headline.endswith("keep tp2, p2p. Kept: tp2, p2p; tp2, staged.")
    assert [one.command for one in found.measurements] == ["linkbound links"]


def test_a_load_that_would_queue_everywhere_names_what_is_held() -> None:
    queued = Unpriced(
        plan=blind(TP2, Arm.P2P).plan,
        reason=Reason(code="does-not-fit-at-once", text="tp2, p2p: 64 at once do not fit."),
    )
    found = decide(
        Case(
            load=load(100, 10, 64),
            forecasts=(),
            fits=(fits(ONE, batch=4), fits(TP2, batch=20)),
            gain_error=0.02,
            unpriced=(queued,),
        )
    )
    assert (found.answer, found.plan) == (UNDECIDED, None)
    assert found.headline.endswith("nothing here runs it, neither one GPU nor a split.")
    assert [(one.code, one.text) for one in found.reasons] == [
        (
            "no-plan-holds",
            "tp2 holds most, ~20 of 64 sequences at once; the rest would queue, which is not "
            "predicted here.",
        )
    ]
    assert found.would_change == ("At most ~20 sequences at once: tp2 holds them.",)
    assert (found.plans, found.measurements) == ((), ())


def test_a_bundled_model_is_served_with_dummy_weights() -> None:
    asked = case(made(ONE, weights(1.06)), made(TP2, weights(1.0), arm=Arm.P2P))
    (wanted,) = decide(msgspec.structs.replace(asked, model="llama-3.1-8b")).measurements
    assert wanted.command.startswith("linkbound serve llama-3.1-8b --dummy-weights --split one ")


@pytest.mark.parametrize(
    ("code", "arm", "seen", "expected"),
    [
        ("p2p-corruption", Arm.P2P, "GPU0 -> GPU1, pull: wrong.", UNDECIDED),
        ("p2p-hang", Arm.NCCL, "all_reduce over GPU0, GPU1: no sign of life.", UNDECIDED),
        ("wrong-values", Arm.STAGED, "host -> GPU1, pinned: wrong.", UNDECIDED),
        ("p2p-corruption", Arm.STAGED, "GPU0 -> GPU1, pull: wrong.", KEEP),
        ("p2p-corruption", Arm.P2P, "GPU1 -> GPU2, pull: wrong.", KEEP),
        ("transfer-error", Arm.P2P, "GPU0 -> GPU1, pull: no sample.", KEEP),
    ],
)
def test_a_plan_over_a_faulty_path_is_not_kept(
    code: str, arm: Arm, seen: str, expected: Answer
) -> None:
    fault = Finding(
        code=code,
        level=Level.SEEN,
        severity=Severity.ERROR,
        seen=seen,
        why="It would compute with wrong numbers.",
        remedy="Do not trust it.",
        record_ids=("f",),
    )
    found = decide(
        case(made(ONE, weights(2.0)), made(TP2, weights(1.0), arm=arm), findings=(fault,))
    )
    assert found.answer is expected
    reasons = [one for one in of_plan(found, TP2, arm).reasons if one.code == code]
    assert bool(reasons) is (expected is UNDECIDED)
    assert all(seen in one.text and one.record_ids == ("f",) for one in reasons)
    assert [one for one in reasons if one not in found.reasons] == []


NO_TIME = "No time is known for all_reduce of 8,192 bytes."


def blind(split: Split, arm: Arm) -> Unpriced:
    plan = made(split, weights(1.0), arm=arm).plan
    return Unpriced(plan=plan, reason=Reason(code="no-curve", text=NO_TIME))


def test_the_best_smaller_plan_is_the_one_to_beat() -> None:
    found = decide(
        case(
            made(ONE, weights(4.0)),
            made(TP2, weights(1.5), arm=Arm.P2P),
            made(PP2, weights(3.0), arm=Arm.P2P),
            made(Split(tp=4), weights(1.49), arm=Arm.P2P),
        )
    )
    (comparison,) = of_plan(found, Split(tp=4), Arm.P2P).comparisons
    assert comparison.baseline.split == TP2
    assert comparison.answer is REJECT
    assert of_plan(found, TP2, Arm.P2P).answer is KEEP


def test_the_fastest_of_the_kept_plans_is_chosen() -> None:
    found = decide(
        case(
            made(ONE, weights(4.0)),
            made(TP2, weights(2.0), arm=Arm.STAGED),
            made(TP2, weights(1.5), arm=Arm.P2P),
        )
    )
    assert found.plan is not None
    assert found.plan.arm is Arm.P2P
