"""The verbs `fit` and `splits` as a user runs them, on recorded and on stated machines."""

import json
from pathlib import Path

import pytest

from linkbound.cli.main import run

CASES = Path(__file__).parents[1] / "cases"

CONFIG_40_GB = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "torch_dtype": "bfloat16",
    "hidden_size": 6144,
    "intermediate_size": 16384,
    "num_hidden_layers": 48,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 100_032,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}


@pytest.fixture
def answer(capsys):
    """Runs a command line with --json and returns its document."""

    def ask(*arguments):
        assert run([*arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)

    return ask


def by_name(document):
    return {split["name"]: split for split in document["splits"]}


def test_70b_on_the_recorded_pair(answer):
    found = answer("fit", "llama-3.1-70b", "--machine", "h200-pair")
    assert (found["schema"], found["version"]) == ("linkbound.fit", 1)
    assert found["parameters"] == 70_553_706_496
    assert found["kv_bytes_per_token"] == 327_680
    assert found["machine"] == "h200-pair"
    splits = by_name(found)
    assert {name: split["fits"] for name, split in splits.items()} == {
        "one GPU": False,
        "tp2": True,
        "pp2": True,
        "2 replicas": False,
    }
    (gpu,) = splits["one GPU"]["per_gpu"]
    assert gpu["capacity_bytes"] == 143_771 * 1024**2
    assert gpu["weights_bytes"] == 2 * 70_553_706_496
    assert gpu["kv_tokens"] < 4096
    assert gpu["kv_cache_bytes"] is None
    assert splits["one GPU"]["longest_context"] is None
    assert [gpu["gpu"] for gpu in splits["tp2"]["per_gpu"]] == ["GPU0", "GPU1"]
    assert splits["tp2"]["kv_tokens"] == min(gpu["kv_tokens"] for gpu in splits["tp2"]["per_gpu"])


def test_a_40_gb_model_on_two_24_gib_cards(answer, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG_40_GB))
    splits = by_name(answer("fit", str(tmp_path), "--gpus", "2x24GiB"))
    assert {name: split["fits"] for name, split in splits.items()} == {
        "one GPU": False,
        "tp2": True,
        "pp2": True,
        "2 replicas": False,
    }
    assert splits["one GPU"]["reason"].endswith("2 GPUs of 24.0 GiB are not one of 48.0 GiB.")


def test_nothing_fits_is_an_answer(capsys):
    assert run(["fit", "llama-3.1-70b", "--gpus", "8GiB"]) == 0
    out = capsys.readouterr().out
    assert "one GPU: needs" in out
    assert "tp2" not in out


def test_text_names_model_machine_load_and_priors(capsys):
    assert run(["fit", "llama-3.1-8b", "--split", "one", "--split", "tp2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "model    llama-3.1-8b: 8,030,261,248 parameters, 14.96 GiB of weights, "
        "131,072 B of cache a token"
    )
    assert lines[1] == "machine  h200-pair (recorded, not this host): GPU0 .. GPU1 140.40 GiB"
    assert lines[2] == "load     1,024 tokens in, 256 out, 1 at once"
    assert lines[5].split() == [
        *("one", "GPU", "yes", "GPU0", "140.40", "129.17", "14.96", "1.78", "(0.76-6.89)"),
        *("112.44", "(107.32-113.45)", "921,072", "131,072", "719"),
    ]
    assert any("prior (vLLM" in line for line in lines)


def test_a_split_that_cannot_be_is_told_why(capsys):
    assert run(["fit", "llama-3.1-8b", "--split", "tp3", "--gpus", "4x24GiB"]) == 0
    assert "tp3: 32 query heads do not divide by tp 3." in capsys.readouterr().out
    assert run(["splits", "llama-3.1-8b", "--split", "tp3"]) == 0
    assert "tp3: 32 query heads do not divide by tp 3." in capsys.readouterr().out


def test_memory_can_be_stated_for_a_recorded_machine(answer, capsys):
    # The card of another model is left out, as in a study: its memory is not known either.
    assert run(["fit", "llama-3.1-8b", "--machine", "5060ti-pair"]) == 0
    out, err = capsys.readouterr()
    assert "GPU1 .. GPU2" in out
    assert "Left out: GPU0 is NVIDIA GeForce RTX 5070" in err
    assert (
        run(["fit", "llama-3.1-8b", "--machine", str(CASES / "088-chlc-8x4090-nps4-all-sys")]) == 2
    )
    assert "--gpus 2x24GiB" in capsys.readouterr().err
    found = answer(
        "fit", "llama-3.1-8b", "--machine", "5060ti-pair", "--gpus", "3x16GiB", "--exclude", "GPU0"
    )
    assert found["machine"] == "5060ti-pair, memory stated: 3x16GiB"
    splits = by_name(found)
    assert [gpu["gpu"] for gpu in splits["tp2"]["per_gpu"]] == ["GPU1", "GPU2"]
    assert "3 replicas" not in splits
    assert splits["one GPU"]["fits"] is False
    assert splits["tp2"]["fits"] is True


def test_crossings_of_tp2(answer):
    found = answer("splits", "llama-3.1-8b", "--split", "tp2", "--prompt", "8192")
    (split,) = found["splits"]
    decode = [one for one in split["crossings"] if one["phase"] == "decode"]
    assert sum(one["calls_per_step"] for one in decode) == 65
    assert {one["size_bytes"] for one in decode} == {8192}
    prefill = [one for one in split["crossings"] if one["phase"] == "prefill"]
    assert {one["size_bytes"] for one in prefill} == {67_108_864}
    assert [one["bytes_per_token"] for one in prefill] == [8192, 64 * 8192]


def test_crossings_of_experts_by_dispatch(answer):
    def sizes(*options):
        (split,) = answer("splits", "mixtral-8x7b", "--split", "ep2 x2", *options)["splits"]
        return {one["operation"] for one in split["crossings"]}

    assert sizes() == {"all_gather", "reduce_scatter"}
    assert sizes("--dispatch", "all_to_all") == {"all_to_all"}


def test_replicas_and_one_gpu_say_that_nothing_crosses(capsys):
    assert run(["splits", "llama-3.1-8b", "--split", "one", "--split", "2x"]) == 0
    assert capsys.readouterr().out.count("nothing crosses") == 2


def test_logits_on_request(answer):
    (split,) = answer("splits", "llama-3.1-8b", "--split", "tp2", "--logits")["splits"]
    assert [one["kind"] for one in split["crossings"]].count("logits") == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpus", "banana"], "'banana' is not a size."),
        (["--split", "banana"], "'banana' is not a split"),
        (["--override", "x"], "--override 'x' has no key and value."),
        (["--exclude", "GPU9"], "--exclude GPU9: no such GPU."),
        (["--machine", "nowhere"], "There is no recorded machine 'nowhere'"),
        (["--machine", "h200-pair", "--gpus", "3x24GiB"], "names 3 GPUs, the machine has 2."),
        (["--prompt", "0"], "Invalid value for '--prompt'"),
    ],
)
def test_wrong_arguments_end_with_2_and_one_message(arguments, words, capsys):
    assert run(["fit", "llama-3.1-8b", *arguments]) == 2
    seen = capsys.readouterr()
    assert words in seen.err
    assert seen.out == ""


def test_every_gpu_left_out_is_refused(capsys):
    arguments = ["--gpus", "1x24GiB", "--exclude", "GPU0"]
    assert run(["fit", "llama-3.1-8b", *arguments]) == 2
    assert "no GPU is left" in capsys.readouterr().err


def test_a_load_beyond_the_context_fits_nowhere(answer):
    found = answer("fit", "llama-3.1-8b", "--gpus", "2x80GiB", "--prompt", "140000")
    assert {split["fits"] for split in found["splits"]} == {False}
    assert found["splits"][0]["reason"].startswith("140,256 tokens a sequence are asked for")


def test_what_rests_on_priors_is_marked(capsys):
    """14.96 GiB of weights and 0.42 to 2.72 GiB beside them leave 4.40 to 6.70 of 22.08 GiB."""
    assert run(["fit", "llama-3.1-8b", "--gpus", "24GiB", "--split", "one"]) == 0
    out = capsys.readouterr().out
    header = next(line for line in out.splitlines() if line.startswith("split"))
    assert header.endswith("~context  ~batch")
    assert header.split()[6:11] == ["~beside", "~KV", "cache", "~KV", "tokens"]
    assert "6.03 (4.40-6.70)" in out
    assert "one GPU: ~49,360 tokens of cache on GPU0, the fullest GPU; ~38 sequences" in out
