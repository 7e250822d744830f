"""Which GPUs a split may use: alike and not refused by the driver; the rest with reasons (D4)."""

from collections.abc import Mapping
from itertools import permutations

from linkbound.links.types import PeerAccess
from linkbound.topology.types import Capability, Machine, PeerStatus


def excluded_gpus(machine: Machine, access: tuple[PeerAccess, ...]) -> Mapping[str, str]:
    """GPU label to the reason why no split uses it; empty where all are alike.

    A split's slowest rank sets its pace, so the largest group of one model is kept; among groups of
    one size, the one whose GPUs reach each other.
    """
    groups: dict[str, list[str]] = {}
    for gpu in machine.gpus:
        groups.setdefault(gpu.model or "unknown model", []).append(gpu.label)
    if len(groups) < 2:
        return {}
    kept = max(groups, key=lambda model: (len(groups[model]), _reach(groups[model], access)))
    return {
        label: _reason(label, model, groups[kept], kept, machine, access)
        for model, labels in groups.items()
        if model != kept
        for label in labels
    }


def _reach(labels: list[str], access: tuple[PeerAccess, ...]) -> int:
    return sum(_granted(src, dst, access) is True for src, dst in permutations(labels, 2))


def _granted(src: str, dst: str, access: tuple[PeerAccess, ...]) -> bool | None:
    return next((one.granted for one in access if (one.src, one.dst) == (src, dst)), None)


def _reason(
    label: str,
    model: str,
    kept: list[str],
    kept_model: str,
    machine: Machine,
    access: tuple[PeerAccess, ...],
) -> str:
    text = f"{label} is {model}, the others are {kept_model}: the slower sets the pace"
    refused = [one for one in kept if _granted(label, one, access) is False]
    if not refused:
        return text + "."
    text += f"; CUDA refuses peer access between it and {', '.join(refused)}"
    said_ok = [
        one
        for one in refused
        if machine.path(label, one).status.get(Capability.READ) is PeerStatus.OK
    ]
    return text + (" although nvidia-smi says OK." if said_ok else ".")
