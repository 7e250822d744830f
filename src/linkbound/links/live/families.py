"""Who can run collectives here, and why one of them is left out (L4)."""

import importlib.util

from linkbound.links.live.collective_types import Family

ABOUT = {
    Family.NCCL: "NCCL by its C interface, in every arm",
    Family.OWN: "our one-shot and two-shot kernels over mapped peer memory",
    Family.TORCH: "torch's symmetric memory, one-shot and two-shot",
}


def why_skipped(family: Family) -> str | None:
    """Why a full sweep leaves the family out; None where it runs.

    NCCL that is missing is a finding of the sweep itself, so that no sweep without it looks whole.
    """
    if family is Family.TORCH and importlib.util.find_spec("torch") is None:
        return "torch is not installed: pip install 'linkbound[torch]'"
    return None
