"""What rows show by themselves, from step times that are chosen."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from profile_results import DECODE, job, result

from linkbound.links.types import Arm, Launch
from linkbound.profile.cells import notes
from linkbound.profile.effects import Against, Answer, compared, effects, sentence
from linkbound.profile.launch import JobResult
from linkbound.profile.summary import rows
from linkbound.profile.types import Delay, Device
from linkbound.splits.types import Split


def _child(split: str, arm: Arm | None, step_s: float) -> JobResult:
    ranks = 1 if split == "one" else 2
    return result(job(split, arm), [[step_s] * 3] * ranks)


def _found(*children: tuple[str, Arm | None, float]) -> dict[tuple[str, str, str], Answer]:
    shown = effects(rows([_child(*one) for one in children]))
    return {(one.split.name, str(one.arm), one.against.value): one.answer for one in shown}


def test_a_split_against_one_gpu_and_on_against_off() -> None:
    once = [
        ("one", None, 0.0588),
        ("tp2", Arm.P2P, 0.0398),
        ("tp2", Arm.STAGED, 0.0608),
        ("pp2", Arm.P2P, 0.0592),
        ("pp2", Arm.STAGED, 0.0594),
    ]
    again = [(split, arm, step_s * 1.002) for split, arm, step_s in once]
    assert _found(*once, *again) == {
        ("tp2", "p2p", "one GPU"): Answer.FASTER,
        ("tp2", "staged", "one GPU"): Answer.SLOWER,
        ("pp2", "p2p", "one GPU"): Answer.SAME,
        ("pp2", "staged", "one GPU"): Answer.SAME,
        ("tp2", "p2p", "staged"): Answer.FASTER,
        ("pp2", "p2p", "staged"): Answer.SAME,
    }


def test_processors_have_no_direct_path_and_are_not_compared() -> None:
    """Seen: tp2 p2p x1.33 of staged over gloo, where both are the same code."""
    children = [
        _child("one", None, 0.05),
        _child("tp2", Arm.P2P, 0.0129),
        _child("tp2", Arm.STAGED, 0.0171),
    ]
    replace = msgspec.structs.replace
    ran = [replace(one, job=replace(one.job, device=Device.CPU)) for one in children]
    found = rows(ran)
    assert effects(found) == ()
    assert sum("says nothing about GPUs" in note for note in notes(found, (), ())) == 1
    assert not any("says nothing about GPUs" in note for note in notes(rows(children), (), ()))


def test_one_child_alone_is_good_for_five_percent() -> None:
    assert _found(("one", None, 0.0588), ("tp2", Arm.STAGED, 0.0608)) == {
        ("tp2", "staged", "one GPU"): Answer.SAME
    }
    assert _found(("one", None, 0.0588), ("tp2", Arm.STAGED, 0.0700)) == {
        ("tp2", "staged", "one GPU"): Answer.SLOWER
    }


def test_repeats_that_meet_are_no_difference() -> None:
    children = [
        ("one", None, 0.050), ("tp2", Arm.P2P, 0.040),
        ("one", None, 0.060), ("tp2", Arm.P2P, 0.055),
    ]  # fmt: skip
    assert _found(*children) == {("tp2", "p2p", "one GPU"): Answer.SAME}


def test_the_sentence_has_every_figure() -> None:
    children = [_child("one", None, 0.010), _child("tp2", Arm.P2P, 0.005)]
    (effect,) = effects(rows(children * 2))
    assert effect.code == "faster-than-one-gpu"
    assert effect.against is Against.ONE_GPU
    assert sentence(effect) == (
        "tp2 p2p is faster than one GPU, beyond the noise of the repeats: "
        "decode 4 after 16 5.00 ms against 10.0 ms (x2.00)."
    )


def test_a_step_that_only_the_host_launches_is_named() -> None:
    graph, eager = rows([_child("tp2", Arm.P2P, 0.005), _child("tp2", Arm.STAGED, 0.010)])
    eager = msgspec.structs.replace(eager, launch=Launch.EAGER.value)
    graph = msgspec.structs.replace(graph, launch=Launch.GRAPH.value)
    single = msgspec.structs.replace(graph, split=Split(), arm=None)
    shown = {one.code: sentence(one) for one in effects([graph, eager, single])}
    words = shown["faster-than-staged"]
    assert words.endswith("(x2.00, the other launched call by call).")
    slower = shown["slower-than-one-gpu"]
    assert slower.endswith("(x0.500, launched call by call).")
    assert "call by call" not in shown["same-as-one-gpu"]


@given(st.floats(1e-6, 10), st.floats(1e-6, 10))
def test_swapping_the_sides_turns_the_gain_over(one_s: float, other_s: float) -> None:
    one, other = rows([_child("tp2", Arm.P2P, one_s), _child("tp2", Arm.STAGED, other_s)])
    there, back = compared(one, other), compared(other, one)
    assert there.gain * back.gain == pytest.approx(1)
    assert there.low * back.high == pytest.approx(1)
    assert there.low <= there.gain <= there.high


def test_a_control_shows_the_delay_that_it_was_given() -> None:
    from msgspec.structs import replace

    # 7 all-reduces and a gather; rank 0 enters at 4 ms, rank 1 at 6: 2 ms are waited for.
    slowed = replace(job("tp2", Arm.P2P), delay=Delay(rank=1, seconds=0.00025))
    found = rows([result(slowed, [[0.010], [0.010]])])
    assert effects([*found, *rows([_child("one", None, 0.01)])]) == ()
    (said,) = [one for one in notes(found, (), ()) if "slowed" in one]
    assert said == (
        "tp2 p2p, decode 4 after 16: the slowed rank holds the others up for 2.00 ms a step; "
        "2.00 ms are found as waiting (+0.0%). Without it the others' own work takes 0 us less "
        "than that rank's."
    )
    assert DECODE.name in said
