"""How much of a prompt and of a token the state of the link takes: staged against direct (D3)."""

from linkbound.evidence.types import Figure, Provenance
from linkbound.predict.types import Estimate, Forecast
from linkbound.units import format_time
from linkbound.verdict.types import Reason

TELLING = 0.01
"""Shares of a time below this are not worth a word."""
EFFECT_ERROR = 0.15
"""Half-width of a predicted effect of staging: on the recorded pair measured curves explain it
within this, from 256 KiB to 64 MiB a call (docs/accuracy.md)."""


def staging_share(direct: Forecast, staged: Forecast) -> Reason | None:
    """What staging adds to the prefill and to a token of one split; None where it adds nothing.

    Both plans compute the same: what is not known of that is out of the difference.
    """
    found = [("of its prefill", staged.ttft_s, _added(direct.ttft_s, staged.ttft_s))]
    if direct.tpot_s is not None and staged.tpot_s is not None:
        token = _added(direct.tpot_s, staged.tpot_s)
        found.insert(0, ("a token", staged.tpot_s, token))
    told = [one for one in found if abs(one[2].value) >= TELLING * one[1].value]
    if not told:
        return None
    parts = (
        f"~{format_time(added.value)} ({format_time(added.low)} to {format_time(added.high)}) of "
        f"~{format_time(whole.value)} {what} ({added.value / whole.value:.0%})"
        for what, whole, added in told
    )
    return Reason(
        code="staging-share",
        text=f"Staged, {direct.plan.split.name} takes this much for the state of its link: "
        + " and ".join(parts)
        + ".",
        figures=tuple(
            Figure(
                value=added.value,
                unit="s",
                provenance=Provenance.CALIBRATED,
                low=added.low,
                high=added.high,
                basis="predicted: staged less direct, what both compute left out",
            )
            for _, _, added in told
        ),
        record_ids=tuple(dict.fromkeys((*direct.record_ids, *staged.record_ids))),
    )


def _added(direct: Estimate, staged: Estimate) -> Estimate:
    value = staged.value - direct.value
    wide = EFFECT_ERROR * abs(value)
    return Estimate(value=value, low=value - wide, high=value + wide)
