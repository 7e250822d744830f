"""Splits as people write them: tp2, tp2pp2, pp2:20,12, ep8 x8, 2 replicas (S1)."""

import re

from linkbound.errors import UsageError
from linkbound.splits.types import Dispatch, Split

_ONE = re.compile(r"(?:one|1|single)?\s*(?:gpu)?", re.IGNORECASE)
_PARTS = r"\d[\d.]*(?:,\d[\d.]*)*"
_DEGREE = re.compile(
    rf"(?P<name>tp|pp|ep|replicas?|x)\s*=?\s*(?P<count>\d{{1,4}})(?::(?P<parts>{_PARTS}))?"
    r"|(?P<copies>\d{1,4})\s*(?:replicas?|x)",
    re.IGNORECASE | re.ASCII,
)
_GAP = re.compile(r"[\s,+]*")


def parse_split(text: str) -> Split:
    """The split that `text` names, in any order of its degrees. Raises UsageError.

    `pp2:20,12` states the layers of each stage, `tp2:3,1` the share of each tensor rank.
    """
    text = text.strip()
    if _ONE.fullmatch(text):
        return Split()
    degrees: dict[str, int] = {}
    parts: dict[str, str] = {}
    position = 0
    while position < len(text):
        found = _DEGREE.match(text, position)
        if found is None:
            raise _unknown(text, f"'{text[position:]}' is no degree")
        name = _name(found)
        if name in degrees:
            raise _unknown(text, f"{name} is named twice")
        degrees[name] = int(found["copies"] or found["count"])
        if found["parts"]:
            parts[name] = found["parts"]
        gap = _GAP.match(text, found.end())
        position = gap.end() if gap else found.end()
    return _build(text, degrees, parts)


def _name(found: re.Match[str]) -> str:
    name = (found["name"] or "").lower()
    return name if name in ("tp", "pp", "ep") else "replicas"


def _build(text: str, degrees: dict[str, int], parts: dict[str, str]) -> Split:
    if set(parts) - {"tp", "pp"}:
        raise _unknown(text, "only tp and pp take parts after a colon")
    tp, replicas = degrees.get("tp", 1), degrees.get("replicas", 1)
    ep = degrees.get("ep", 1)
    try:
        return Split(
            tp=tp,
            pp=degrees.get("pp", 1),
            ep=ep,
            replicas=replicas,
            stage_layers=tuple(int(one) for one in parts["pp"].split(","))
            if "pp" in parts
            else None,
            tensor_ratio=tuple(float(one) for one in parts["tp"].split(","))
            if "tp" in parts
            else None,
            # Experts over several replicas have no all-reduce to ride on: vLLM's default exchange.
            dispatch=Dispatch.GATHER_SCATTER if ep > tp else Dispatch.ALL_REDUCE,
        )
    except ValueError as error:
        raise _unknown(text, str(error)) from error


def _unknown(text: str, what: str) -> UsageError:
    return UsageError(
        f"'{text}' is not a split: {what}.",
        why="A split is made of degrees.",
        hint="Write tp2, pp2, tp2pp2, ep2, x2 for two replicas, or pp2:20,12 for unlike stages.",
    )
