"""Three answers and no more: the whole interval beyond the line, the whole below it, or neither."""

from linkbound.predict.types import Estimate
from linkbound.verdict.types import Answer

# A second GPU that gains less than this is not worth its power and its failures; users may state
# another one (`--min-gain`).
MIN_GAIN = 0.05


def answer(gain: Estimate, min_gain: float = MIN_GAIN) -> Answer:
    """Keep if even the low end gains enough, reject if not even the high end does."""
    line = 1 + min_gain
    if gain.low >= line:
        return Answer.KEEP
    return Answer.REJECT if gain.high < line else Answer.UNDECIDED
