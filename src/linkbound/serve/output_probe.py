"""Asks a server the fixed prompt, unstreamed, at temperature 0, with log-probabilities (P2)."""

import http.client
import random
from urllib.parse import urlsplit

import msgspec

from linkbound.errors import InputError
from linkbound.evidence.types import Reason
from linkbound.serve.load_types import Target
from linkbound.serve.outputs import Output, parse_output

PROMPT_TOKENS = 64
OUTPUT_TOKENS = 48
_TOP = 5
# Below every vocabulary's size, above its special tokens; fixed, so that studies can meet.
_PROMPT = random.Random("linkbound fixed prompt").choices(range(100, 512), k=PROMPT_TOKENS)
_LIMIT_S = 120.0


def probe_output(target: Target, name: str) -> Output | Reason:
    """The first server's answer; a reason where there is none."""
    address = urlsplit(target.urls[0])
    asked = {
        "model": target.model,
        "max_tokens": OUTPUT_TOKENS,
        "temperature": 0,
        "seed": 1,
        **target.extra,
        **_question(target.chat),
    }
    secure = address.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = kind(address.hostname or "", address.port, timeout=_LIMIT_S)
    path = "/v1/chat/completions" if target.chat else "/v1/completions"
    try:
        body = msgspec.json.encode(asked)
        connection.request(
            "POST", address.path + path, body, headers={"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        data = answer.read()
    except (OSError, http.client.HTTPException) as error:
        return Reason(code="no-answer", text=f"The fixed prompt got no answer: {error}.")
    finally:
        connection.close()
    if answer.status != 200:
        text = data[:200].decode("utf-8", errors="replace")
        return Reason(code=f"http-{answer.status}", text=f"HTTP {answer.status}: {text}")
    try:
        return parse_output(data, name)
    except InputError as error:
        return Reason(code="malformed-answer", text=error.seen)


def _question(chat: bool) -> dict[str, object]:
    if chat:
        words = " ".join(f"w{one}" for one in _PROMPT)
        return {"messages": [{"role": "user", "content": words}]}
    return {"prompt": _PROMPT, "logprobs": _TOP}
