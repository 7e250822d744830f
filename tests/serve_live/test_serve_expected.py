"""What a load is to put on the wire: tokens that moved, in steps whose sizes are partly known."""

from pathlib import Path

import pytest

import linkbound
from linkbound.evidence.types import Reason
from linkbound.links.types import Arm
from linkbound.model.read_model import read_model
from linkbound.serve.expected import expected_bytes
from linkbound.serve.load_types import Chunk, Request
from linkbound.serve.moved import DecodeTokens, Moved, moved_by_batch, moved_by_requests
from linkbound.splits.parse_split import parse_split
from linkbound.splits.types import CrossingKind, Phase
from linkbound.splits.wire import Wire

RECORDED = Path(linkbound.__file__).parent / "recorded" / "h200-pair" / "vllm-0.24.0"
GRAPHS = (1, 2, 4, 8, 16, 32, 64, 128)
MIB = 1024**2
# Llama-3.1-8B over two ranks: 64 all-reduces and one of the embedding, 8 KiB a token each way.
TOKEN_BYTES = 2 * 65 * 8192
LOGITS_BYTES = 128256 * 2


@pytest.fixture(scope="module")
def shape():
    return read_model(str(RECORDED / "configs" / "llama8b"))


def wire(arm=Arm.P2P, split="tp2"):
    return Wire(split=parse_split(split), arm=arm, own_limit_bytes=8 * MIB)


def by_kind(found):
    return {(part.phase, part.kind): part for part in found.parts}


def test_prefill_of_one_prompt(shape):
    found = expected_bytes(shape, wire(), moved_by_batch(1, 8192, 1, 8192), GRAPHS)
    assert found.payload_bytes == 8192 * TOKEN_BYTES + LOGITS_BYTES
    # 64 MiB messages run Simple; the logits of one row may be doubled.
    assert found.low_bytes == found.payload_bytes
    assert found.high_bytes == found.payload_bytes + LOGITS_BYTES


def test_decode_of_one_sequence_over_the_engines_own_and_over_nccl(shape):
    moved = moved_by_batch(1, 8192, 101, 8192)
    own = by_kind(expected_bytes(shape, wire(), moved, GRAPHS))
    tensor = own[Phase.DECODE, CrossingKind.TENSOR]
    payload = 100 * 2 * 64 * 8192
    assert (tensor.payload_bytes, tensor.low_bytes, tensor.high_bytes) == (payload,) * 3
    nccl = by_kind(expected_bytes(shape, wire(Arm.NCCL), moved, GRAPHS))
    tensor = nccl[Phase.DECODE, CrossingKind.TENSOR]
    # One of the 100 may have run beside the prompt, in a message too large for LL.
    assert tensor.high_bytes == 2 * payload
    assert tensor.low_bytes == pytest.approx(2 * payload * 0.995)
    assert nccl[Phase.DECODE, CrossingKind.LOGITS].payload_bytes == 100 * LOGITS_BYTES


def test_padding_crosses_too(shape):
    moved = moved_by_batch(5, 1024, 128, 8192)
    found = by_kind(expected_bytes(shape, wire(), moved, GRAPHS))
    tensor = found[Phase.DECODE, CrossingKind.TENSOR]
    payload = 5 * 127 * 2 * 64 * 8192
    assert tensor.payload_bytes == payload
    assert tensor.high_bytes == pytest.approx(payload * 8 / 5)
    # Graph sizes that nobody knows: anything from no padding to nearly twice.
    found = by_kind(expected_bytes(shape, wire(), moved, ()))
    tensor = found[Phase.DECODE, CrossingKind.TENSOR]
    assert (tensor.low_bytes, tensor.high_bytes) == pytest.approx((payload, payload * 9 / 5))


def test_stages_of_a_pipeline_send_two_tensors(shape):
    moved = moved_by_batch(8, 1024, 1, 8192)
    found = expected_bytes(shape, wire(Arm.STAGED, "pp2"), moved, GRAPHS)
    assert found.payload_bytes == found.low_bytes == found.high_bytes == 2 * 8192 * 8192


@pytest.mark.parametrize(
    ("batch", "prompt", "output", "calls", "moved"),
    [
        (1, 1024, 1, 1, (1024, 1, 1024, 1024, ())),
        (32, 1024, 1, 2, (65536, 64, 8192, 8192, ())),
        (9, 1000, 3, 1, (9000, 9, 808, 8192, (18,))),
    ],
)
def test_fixed_batches(batch, prompt, output, calls, moved):
    found = moved_by_batch(batch, prompt, output, 8192, calls)
    assert (
        found.prompt_tokens,
        found.prompts,
        found.fewest_in_step,
        found.most_in_step,
        tuple(one.tokens for one in found.decode),
    ) == moved


def request(index, begun_s, tokens, prompt=100, **more):
    """An answer of so many tokens, one every 10 ms."""
    chunks = tuple(
        Chunk(at_s=begun_s + 0.01 * number, read=number, size_bytes=9, has_token=True)
        for number in range(tokens)
    )
    fields = {
        "index": index,
        "target": "http://a",
        "warm_up": False,
        "prompt_tokens": prompt,
        "output_tokens": tokens,
        "scheduled_s": begun_s,
        "sent_s": begun_s,
        "chunks": chunks,
        "end_s": begun_s + 0.01 * tokens,
        "used_prompt_tokens": prompt,
        "used_output_tokens": tokens,
    }
    return Request(**fields | more)


def test_batches_are_those_that_the_client_saw():
    # Two together, then one alone.
    found = moved_by_requests(
        [request(0, 0.0, 11), request(1, 0.0, 11), request(2, 5.0, 6)], 8192, 256
    )
    assert found == Moved(
        prompt_tokens=300,
        prompts=3,
        fewest_in_step=100,
        most_in_step=300,
        decode=(DecodeTokens(fewest=1, most=2, tokens=25.0),),
    )
    alone = moved_by_requests([request(0, 0.0, 11), request(1, 9.0, 11)], 8192, 256)
    assert alone.decode == (DecodeTokens(fewest=1, most=1, tokens=20.0),)


def test_replicas_and_warm_up_share_no_step():
    one = moved_by_requests(
        [
            request(0, 0.0, 11),
            request(1, 0.0, 11, target="http://b"),
            request(2, 0.0, 11, warm_up=True),
        ],
        8192,
        256,
    )
    assert one.decode == (DecodeTokens(fewest=1, most=1, tokens=30.0),)


def test_tokens_are_the_servers_count_and_cached_prompts_cross_nothing():
    found = moved_by_requests(
        [request(0, 0.0, 11, used_output_tokens=21, cached_tokens=40)], 8192, 256
    )
    assert (found.prompt_tokens, found.decode_tokens) == (60, 20)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"error": Reason(code="cut-stream", text="x")}, "1 of 2 requests failed"),
        ({"used_output_tokens": None}, "no usage"),
    ],
)
def test_what_is_not_known_is_no_number(changes, text):
    found = moved_by_requests([request(0, 0.0, 3), request(1, 0.0, 3, **changes)], 8192, 256)
    assert isinstance(found, Reason)
    assert text in found.text
