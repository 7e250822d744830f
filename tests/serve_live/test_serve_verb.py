"""`linkbound serve`: what is planned from the words of a command line, and what is refused."""

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from serve_cases import client_limit
from test_serve_outputs import VLLM

from linkbound.cli import trace
from linkbound.cli.serve import command
from linkbound.errors import InputError, LinkboundError, UsageError
from linkbound.evidence import Study
from linkbound.links.types import Arm
from linkbound.serve.engines import ENGINES
from linkbound.serve.engines.listing import standing
from linkbound.serve.load_types import Arrival, Slo
from linkbound.serve.plan import LoadWords, parse_slo, plan_cells, plan_contenders
from linkbound.serve.process import free_port

DOCS = Path(__file__).parents[2] / "docs"


def run_verb(*arguments):
    return CliRunner().invoke(command, [str(one) for one in arguments], standalone_mode=False)


def words(**changes):
    plain = {
        "rates": None,
        "burstiness": None,
        "concurrency": None,
        "requests": 10,
        "prompt_tokens": 8,
        "output_tokens": 4,
        "vocabulary": "100,512",
        "warm_up": 1,
        "limit_s": 9.0,
        "seed": 1,
    }
    return LoadWords(**plain | changes)


def test_cells_of_rates_and_concurrencies():
    cells = plan_cells(words(rates="1,4.5,1", concurrency="8"))
    assert [(one.arrival, one.rate_per_s, one.concurrency) for one in cells] == [
        (Arrival.POISSON, 1.0, None),
        (Arrival.POISSON, 4.5, None),
        (Arrival.CLOSED, None, 8),
    ]
    (gamma,) = plan_cells(words(rates="2", burstiness=0.5))
    assert (gamma.arrival, gamma.burstiness) == (Arrival.GAMMA, 0.5)


def test_cells_may_state_their_requests():
    cells = plan_cells(words(rates="12x300,24, 4.5x7", concurrency="8,10x20"))
    assert [(one.rate_per_s, one.concurrency, one.requests) for one in cells] == [
        (12.0, None, 300),
        (24.0, None, 10),
        (4.5, None, 7),
        (None, 8, 10),
        (None, 10, 20),
    ]
    assert plan_cells(words(rates="12,12")) == plan_cells(words(rates="12"))


@pytest.mark.parametrize(
    "rates", ["x300", "12x", "12x0", "12x-3", "12x1.5", "0x300", "12x300x4", "12x300,12", "nanx3"]
)
def test_requests_of_a_rate_that_are_none(rates):
    with pytest.raises(UsageError, match="--rate"):
        plan_cells(words(rates=rates))


def test_contenders_of_splits_and_arms():
    found = plan_contenders(("tp2", "one", "x2"), ("p2p", "staged"), None, external=False)
    assert [(one.name, one.arm) for one in found] == [
        ("tp2 p2p", Arm.P2P),
        ("tp2 staged", Arm.STAGED),
        ("one GPU", None),
        ("2 replicas", None),
    ]
    (default,) = plan_contenders(("pp2",), (), None, external=False)
    assert default.arm is Arm.P2P
    (external,) = plan_contenders((), (), "tp2 by hand", external=True)
    assert external.name == "tp2 by hand"


def test_a_split_may_name_its_arm():
    found = plan_contenders(("tp2", "pp2 staged"), ("p2p", "nccl"), None, external=False)
    assert [one.name for one in found] == ["tp2 p2p", "tp2 nccl", "pp2 staged"]
    with pytest.raises(UsageError, match="nothing crosses in it"):
        plan_contenders(("one staged",), (), None, external=False)
    with pytest.raises(UsageError, match="--arm p2p has no effect"):
        plan_contenders(("tp2 nccl", "one"), ("p2p",), None, external=False)


def test_slo_words():
    assert parse_slo("ttft=200ms,e2e=5s") == Slo(ttft_s=0.2, e2e_s=5.0)
    assert parse_slo(None) is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "needs a MODEL"),
        (("m", "--engine", "nothing"), "no engine 'nothing'"),
        (("m",), "No load was given"),
        (("m", "--rate", "fast"), "--rate 'fast'"),
        (("m", "--rate", "0"), "--rate '0'"),
        (("m", "--concurrency", "1.5"), "--concurrency '1.5'"),
        (("m", "--concurrency", "8", "--requests", "7"), "8 requests at once of 7 in all"),
        (("m", "--rate", "1", "--vocabulary", "9,3"), "--vocabulary '9,3'"),
        (("m", "--rate", "1", "--slo", "p99=3"), "'p99=3'"),
        (("m", "--rate", "1", "--slo", "ttft=0s"), "ttft of 0"),
        (("m", "--rate", "1", "--gpus", "0,0"), "--gpus '0,0'"),
        (("m", "--rate", "1", "--gpus", "0,00"), "--gpus '0,00'"),
        (("m", "--rate", "1", "--gpus", "GPU0"), "--gpus 'GPU0'"),
        (("m", "--rate", "1", "--arm", "staged"), "--arm staged has no effect"),
        (("m", "--rate", "1", "--url", "http://h"), "needs a MODEL, and an address"),
        (("m", "--rate", "1", "--engine", "external"), "needs a MODEL, and an address"),
        (("m", "--rate", "1", "--engine", "external", "--url", "u", "--split", "tp2"), "no effect"),
        (("m", "--trace", "missing.jsonl"), "missing.jsonl cannot be read"),
        (("--import", "missing.json"), "missing.json cannot be read"),
        (("m", "--rate", "1", "--split", "tp2", "--gpus", "0", "--dry-run"), "needs 2 GPUs"),
    ],
)
def test_wrong_words_are_one_clear_error(arguments, words):
    refused(arguments, words)


RUNNING = ("m", "--rate", "1", "--engine", "external", "--url", "http://h", "--dry-run")
BATCHES = ("m", "--batch", "1", "--engine", "vllm-offline", "--dry-run")


@pytest.mark.parametrize(
    "arguments",
    [
        *((*RUNNING, *more) for more in (
            ("--gpus", "0"), ("--sequences", "4"), ("--dummy-weights",), ("--program", "x"),
            ("--extra", "x"), ("--ready-limit", "3"), ("--allow-multicast",), ("--calls", "4"),
            ("--json",),
        )),
        *((*BATCHES, *more) for more in (
            ("--rate", "1"), ("--requests", "3"), ("--warm-up", "3"), ("--label", "x"),
            ("--concurrency", "1"), ("--slo", "ttft=1s"),
        )),
        ("m", "--concurrency", "1", "--dry-run", "--burstiness", "2"),
        ("--list", "--json"),
        ("--import", "x", "--json"),
        ("--import", "x", "--dry-run"),
        ("--engine", "vllm-offline", "--all-reduce", "--gpus", "0,1", "--dry-run"),
        ("--engine", "vllm-offline", "--all-reduce", "--gpus", "0,1", "--batch", "8"),
    ],
)  # fmt: skip
def test_an_option_that_nothing_reads_is_refused_by_its_name(arguments):
    named = [word for word in arguments if word.startswith("--")][-1]
    refused(arguments, f"{named} has no effect: ")


@pytest.mark.parametrize(
    "address", ["h:8000", "foo", "ftp://h", "http://", "http://h:x", "http://h/v1/", "http://h?a=1"]
)
def test_an_address_that_is_no_base_is_refused(address):
    refused(("m", "--rate", "1", "--engine", "external", "--url", address), f"--url '{address}'")


def refused(arguments, words):
    error = run_verb(*arguments).exception
    assert isinstance(error, UsageError | InputError)
    assert words in str(error)
    assert error.why
    assert error.hint


def test_dry_run_shows_what_would_start():
    result = run_verb(
        *("models/l", "--split", "tp2", "--arm", "p2p", "--arm", "staged", "--gpus", "0,1"),
        *("--rate", "1", "--dry-run"),
    )
    lines = result.stdout.splitlines()
    assert [line for line in lines if line.startswith("#")] == ["# tp2 p2p", "# tp2 staged"]
    assert "NCCL_P2P_DISABLE=1" in lines[5]
    assert "vllm serve models/l --served-model-name models/l --host 127.0.0.1" in lines[5]
    assert lines[4].startswith("unset NCCL_P2P_DISABLE ")
    external = run_verb(
        "m", "--engine", "external", "--url", "http://h:1/", "--rate", "1", "--dry-run"
    )
    assert external.stdout == "# nothing is started: load goes to http://h:1\n"


def test_without_aiohttp_only_the_load_is_missing():
    code = (
        "import sys; sys.modules['aiohttp'] = None\n"
        "from linkbound.cli.serve import command\n"
        "from linkbound.errors import MissingExtra\n"
        "command(['--list'], standalone_mode=False)\n"
        "command(['m', '--rate', '1', '--dry-run'], standalone_mode=False)\n"
        "try: command(['m', '--rate', '1'], standalone_mode=False)\n"
        "except MissingExtra as error: print('MISSING', error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "MISSING aiohttp is not installed." in result.stdout
    assert "pip install 'linkbound[serve]'" in result.stdout


def test_a_server_has_room_for_the_fixed_prompt():
    short = ("m", "--rate", "1", "--prompt", "8", "--output", "2", "--dry-run")
    # 64 tokens and 48 more, with the margin of 64.
    assert "--max-model-len 176" in run_verb(*short).stdout


def test_docs_name_every_flag_and_engine():
    text = (DOCS / "serve.md").read_text(encoding="utf-8")
    for verb in (command, trace.command):
        for parameter in verb.params:
            if isinstance(parameter, click.Option):
                assert f"`{parameter.opts[-1]}" in text, parameter.opts
    for engine in ENGINES.values():
        assert f"| `{engine.name}` | {standing(engine)} |" in text


def test_list_is_printed():
    out = run_verb("--list").stdout
    assert "vllm: vLLM [verified with 0.24.0 on H200: one GPU, tp2 in arms p2p, nccl" in out
    assert "sglang: SGLang [unverified]" in out
    blocks = {block.partition(":")[0]: block for block in out.split("\n\n")}
    assert "side by side: yes, its cache is told its size" in blocks["vllm"]
    assert "side by side: yes, its cache is its places" in blocks["llama.cpp"]
    assert "side by side: no" in blocks["sglang"]


def test_the_client_is_measured_beyond_what_cells_ask_for(tmp_path, monkeypatch):
    """A limit of just the 800 chunks/s that were asked refused 806: an event more a stream."""
    asked = []

    def limit(*, enough_chunks_per_s):
        asked.append(enough_chunks_per_s)
        return client_limit()

    monkeypatch.setattr("linkbound.serve.client_limit.measure_client_limit", limit)
    for number, load in enumerate((("--rate", "6.25,1"), ("--rate", "1", "--concurrency", "1"))):
        run_verb(
            *("m", "--engine", "external", "--url", f"http://127.0.0.1:{free_port()}", *load),
            *("--requests", "1", "--repeats", "1", "-C", tmp_path / f"{number}.linkbound"),
        )
    assert asked == [1600.0, None]


def test_an_interrupt_before_any_cell_compares_nothing(tmp_path, monkeypatch):
    def interrupted(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr("linkbound.serve.client_limit.measure_client_limit", interrupted)
    path = tmp_path / "s.linkbound"
    result = run_verb("m", "--engine", "external", "--url", "http://h", "--rate", "9", "-C", path)
    assert result.exit_code == 1
    assert result.stdout == ""
    with Study.open(path) as study:
        assert study.find("serve.comparison") == []


def test_run_without_any_figure_is_exit_one(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "linkbound.serve.client_limit.measure_client_limit", lambda **_: client_limit()
    )
    result = run_verb(
        *("m", "--engine", "external", "--url", f"http://127.0.0.1:{free_port()}", "--rate", "9"),
        *("--requests", "2", "--repeats", "1", "-C", tmp_path / "s.linkbound", "--json"),
    )
    assert isinstance(result.exception, LinkboundError)
    assert result.exception.exit_code == 1
    document = json.loads(result.stdout)
    (row,) = document["rows"]
    assert (row["figures"], row["problems"]) == ({}, ["refused"])
    with Study.open(tmp_path / "s.linkbound") as study:
        assert study.get(document["record_id"]).kind == "serve.comparison"


def test_import_prints_and_keeps(tmp_path):
    file = tmp_path / "v.json"
    file.write_text(json.dumps(VLLM))
    result = run_verb("--import", file, "-C", tmp_path / "i.linkbound")
    lines = result.stdout.splitlines()
    assert lines[2].split("  ")[0] == "vllm bench serve"
    assert "None" not in result.stdout
    assert lines[-1] == "vllm bench serve: 1 of 3 requests failed"
    with Study.open(tmp_path / "i.linkbound") as study:
        (record,) = study.find("serve.import")
        assert study.blob(record.blobs[0]) == file.read_bytes()


@pytest.mark.parametrize(
    ("prompt", "output", "context"),
    [(1000, 24, 1088), (131_000, 72, 131_072), (131_040, 32, 131_072)],
)
def test_no_engine_is_asked_for_more_context_than_the_model_has(prompt, output, context):
    words = ["llama-3.1-8b", "--engine", "vllm", "--dummy-weights", "--rate", "1", "--dry-run"]
    found = CliRunner().invoke(command, [*words, "--prompt", str(prompt), "--output", str(output)])
    assert f"--max-model-len {context} " in found.output


def test_a_batch_keeps_whole_blocks_inside_the_context():
    words = ["llama-3.1-8b", "--engine", "vllm-offline", "--dummy-weights", "--dry-run"]
    found = CliRunner().invoke(command, [*words, "--batch", "1x131000+8"])
    assert '"max_model_len": 131072' in found.output


def test_a_model_that_is_not_here_keeps_the_margin():
    words = ["somebody/model", "--engine", "vllm", "--rate", "1", "--dry-run"]
    found = CliRunner().invoke(command, [*words, "--prompt", "100", "--output", "10"])
    assert "--max-model-len 176 " in found.output


def test_places_are_refused_where_nothing_schedules():
    words = ["llama-3.1-8b", "--engine", "transformers-offline", "--dummy-weights", "--batch", "1"]
    with pytest.raises(UsageError, match="--sequences has no effect: transformers-offline has no"):
        CliRunner().invoke(
            command, [*words, "--sequences", "4", "--dry-run"], catch_exceptions=False
        )
