"""Gives a batch to the child that holds an engine, and waits for its answer, so long (P2)."""

import http.client
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from linkbound.evidence.types import Reason
from linkbound.serve.batch_types import Batch, BatchTimes, HandOvers

_Answer = TypeVar("_Answer", BatchTimes, HandOvers)


def run_batch(url: str, asked: Batch, limit_s: float) -> BatchTimes | Reason:
    """Every time of this batch, or why there is none. What became of the child, its log says."""
    return _order(url, "/batch", asked, limit_s, BatchTimes)


def time_hand_overs(url: str, asked: Batch, limit_s: float) -> HandOvers | Reason:
    """What the batch's steps hand from GPU to GPU, and the time of that, or why it is not known."""
    return _order(url, "/hand-overs", asked, limit_s, HandOvers)


def _order(
    url: str, path: str, asked: Batch, limit_s: float, wanted: type[_Answer]
) -> _Answer | Reason:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=limit_s)
    try:
        connection.request("POST", path, msgspec.json.encode(asked))
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
        return msgspec.json.decode(data, type=wanted)
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = f"{asked.name}: what was answered is no list of times: {data[:60]!r}."
        return Reason(code="malformed-answer", text=text)
