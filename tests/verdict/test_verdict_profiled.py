"""What a recorded profile says beside a verdict: the load's own points, nothing else."""

import msgspec

from linkbound.evidence.types import Derived, Provenance
from linkbound.model.types import Load
from linkbound.profile.effects import Effect
from linkbound.verdict.profiled import Profiled, profiled_reasons
from recorded_profile import recorded_profile


def profiled(model: str) -> list[Profiled]:
    found = []
    for record in recorded_profile():
        if record.kind == "profile.effect" and record.subject["model"] == model:
            assert isinstance(record.outcome, Derived)
            values = {name: one for name, one in record.outcome.values.items() if name != "text"}
            effect = msgspec.convert(values, Effect)
            found += [
                Profiled(
                    split=effect.split,
                    arm=effect.arm,
                    against=effect.against,
                    answer=effect.answer,
                    pair=pair,
                    record_ids=(record.id,),
                )
                for pair in effect.pairs
            ]
    return found


def load(batch: int, prompt: int = 1024) -> Load:
    return Load(prompt_tokens=prompt, output_tokens=64, concurrency=batch)


def said(model: str, asked: Load) -> list[str]:
    return [one.text for one in profiled_reasons(asked, profiled(model))]


def test_a_staged_split_is_slower_in_prefill_and_faster_in_decode() -> None:
    assert (
        "Measured by the reference runtime: tp2, staged is slower than one GPU in prefill "
        "(224 ms against 147 ms, x0.656); faster than one GPU in a decode step (11.0 ms against "
        "14.6 ms, x1.34)." in said("qwen3-30b-a3b", load(8))
    )


def test_phases_that_agree_stand_together() -> None:
    assert (
        "Measured by the reference runtime: pp2, p2p is as fast as staged within noise in "
        "prefill (460 ms against 462 ms, x1.00) and in a decode step (6.03 ms against 6.04 ms, "
        "x1.00)." in said("llama-3.1-8b", load(32))
    )


def test_other_batches_and_prompts_say_nothing() -> None:
    assert said("llama-3.1-8b", load(16)) == []
    assert said("llama-3.1-8b", load(32, prompt=512)) == []


def test_a_decode_step_alone_is_enough() -> None:
    (first, *_) = profiled_reasons(load(128), profiled("llama-3.1-8b"))
    assert "prefill" not in first.text
    assert first.code == "measured-against-one-gpu"
    (figure,) = first.figures
    assert figure.provenance is Provenance.MEASURED
    assert figure.low is not None
    assert figure.high is not None
    assert figure.low < figure.value < figure.high


def test_every_reason_names_the_records_that_it_rests_on() -> None:
    known = {one.id for one in recorded_profile()}
    for reason in profiled_reasons(load(8), profiled("qwen3-30b-a3b")):
        assert reason.record_ids
        assert set(reason.record_ids) <= known
