"""Terminal text and Markdown: 100 columns, machine first, words for what is absent."""

import msgspec
from sample_report import record_id, sample_report

from linkbound.report.markdown import render_markdown
from linkbound.report.text import render_text, render_verdict_text
from linkbound.report.text_tables import plan_rows
from linkbound.report.types import Report


def _hostile() -> Report:
    report = sample_report()
    name = "\x1b[31mred\x1b[0m | <b>`x`*_ \u202eevil " + "long" * 40
    return msgspec.structs.replace(
        report,
        machine_name=name,
        shape=msgspec.structs.replace(report.shape, name=name),
        not_known=(name,),
        commands=("CUDA_VISIBLE_DEVICES=0 " + "x" * 150,),
    )


def test_lines_are_at_most_100_columns() -> None:
    for text in (render_text(sample_report()), render_verdict_text(sample_report())):
        assert max(len(line) for line in text.splitlines()) <= 100


def test_hostile_names_bring_no_control_character() -> None:
    for text in (render_text(_hostile()), render_markdown(_hostile())):
        assert not [one for one in text if (ord(one) < 32 and one != "\n") or one == "\u202e"]
        assert "\\u001b" in text.replace("\\\\", "\\")


def test_the_first_line_says_whose_figures_these_are() -> None:
    note = "All figures are from the recorded machine h200-pair, not from this host."
    assert render_text(sample_report()).splitlines()[0] == note
    assert render_verdict_text(sample_report()).splitlines()[0] == note


def test_verdict_blocks_have_word_reason_record_and_next_command() -> None:
    text = render_verdict_text(sample_report())
    for load in sample_report().loads:
        assert f"{load.verdict.answer.value.upper()}: " in text
    assert f"[{record_id('runs')[:12]}]" in text
    assert "What would change it" in text
    assert "  $ linkbound serve MODEL --split x2 --split tp2 --arm p2p --arm nccl --gpus" in text


def test_predicted_cells_carry_a_tilde_and_a_range() -> None:
    forecast = sample_report().loads[0].forecasts[0]
    row = next(
        line for line in render_text(sample_report()).splitlines() if line.startswith("one GPU ")
    )
    tpot = forecast.tpot_s
    assert tpot is not None
    assert f"~{tpot.value * 1e3:.2f} ({tpot.low * 1e3:.2f}-{tpot.high * 1e3:.2f})" in row
    assert row.split()[2] == "yes"
    assert row.endswith("baseline")


def test_tables_of_memory_crossings_and_score_are_there() -> None:
    lines = render_text(sample_report()).splitlines()
    assert any(line.split()[:3] == ["tp2", "GPU1", "yes"] for line in lines)
    tensor = ["tp2", "decode", "tensor", "all_reduce", "0,1", "8,192", "64"]
    assert tensor in [line.split() for line in lines]
    assert any(line.startswith("staged minus nccl") for line in lines)
    assert any(line.startswith("Evidence  22 records: 12 measured") for line in lines)


def test_a_reason_names_three_records_and_counts_the_rest() -> None:
    report = sample_report()
    ids = tuple(record_id(str(number)) for number in range(5))
    load = report.loads[0]
    reason = msgspec.structs.replace(load.verdict.reasons[0], record_ids=ids, text="Because.")
    verdict = msgspec.structs.replace(load.verdict, reasons=(reason,))
    shown = msgspec.structs.replace(report, loads=(msgspec.structs.replace(load, verdict=verdict),))
    short = " ".join(one[:12] for one in ids[:3])
    assert f"- Because. [{short} and 2 more]" in render_verdict_text(shown)


def test_markdown_is_short_and_shows_text_as_it_is() -> None:
    text = render_markdown(sample_report())
    assert len(text) < 8000
    assert text.startswith("## llama on h200-pair\n\nAll figures are from the recorded machine")
    assert "| plan | fits | TTFT ms |" in text
    assert "\\<b\\>" in render_markdown(_hostile())


def test_same_report_same_bytes() -> None:
    assert render_text(sample_report()) == render_text(sample_report())
    assert render_markdown(sample_report()) == render_markdown(sample_report())


def test_shares_of_a_predicted_call_are_predicted() -> None:
    rows = [row for load in sample_report().loads for row in plan_rows(sample_report(), load)[1:]]
    shares = [cell for row in rows for cell in row[5:7] if cell != "-"]
    assert shares
    assert all(cell.startswith("~") for cell in shares)
