"""Gives a batch to the child that holds an engine, and waits for its times, so long (P2)."""

import http.client
from urllib.parse import urlsplit

import msgspec

from linkbound.evidence.types import Reason
from linkbound.serve.batch_types import Batch, BatchTimes


def run_batch(url: str, asked: Batch, limit_s: float) -> BatchTimes | Reason:
    """Every time of this batch, or why there is none. What became of the child, its log says."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=limit_s)
    try:
        connection.request("POST", "/batch", msgspec.json.encode(asked))
        answer = connection.getresponse()
        data = answer.read()
    except TimeoutError:
        text = f"{asked.name} was not over after {limit_s:g} s."
        return Reason(code="time-limit", text=text)
    except (OSError, http.client.HTTPException) as error:
        return Reason(code="no-answer", text=f"{asked.name} got no answer: {error}.")
    finally:
        connection.close()
    try:
        return msgspec.json.decode(data, type=BatchTimes)
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = f"{asked.name}: what was answered is no list of times: {data[:60]!r}."
        return Reason(code="malformed-answer", text=text)
