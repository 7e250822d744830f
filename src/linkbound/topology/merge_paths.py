"""What several sources say of each ordered pair of GPUs, and of each GPU and NIC (M2, M4)."""

from collections.abc import Mapping, Sequence

from msgspec import structs

from linkbound.topology.settle import Ledger
from linkbound.topology.types import (
    Capability,
    Gpu,
    Machine,
    NicPath,
    Pair,
    PairPath,
    PathKind,
    PeerStatus,
)

_FABRIC = frozenset((PathKind.NVLINK, PathKind.XGMI, PathKind.C2C))
_SAME_NODE = frozenset((PathKind.PHB, PathKind.NODE))
Keys = Sequence[Mapping[str, str]]


class _Claim:
    """One source's path, and whether that source can see links beside PCIe at all."""

    def __init__(self, source: str, path: PairPath, sees_fabric: bool) -> None:
        self.source = source
        self.path = path
        self.sees_fabric = sees_fabric


def merge_pairs(
    machines: Sequence[Machine], keys: Keys, gpus: Sequence[Gpu], ledger: Ledger
) -> tuple[PairPath, ...]:
    """Every ordered pair that a source speaks of, in the order of the GPUs."""
    claims: dict[Pair, list[_Claim]] = {}
    for at, machine in enumerate(machines):
        linked = {gpu.key for gpu in machine.gpus if gpu.nvlinks}
        for path in machine.pairs:
            pair = Pair(src=keys[at][path.pair.src], dst=keys[at][path.pair.dst])
            claim = _Claim(", ".join(machine.sources), path, path.pair.src in linked)
            claims.setdefault(pair, []).append(claim)
    ordered = (Pair(src=src.key, dst=dst.key) for src in gpus for dst in gpus if src.key != dst.key)
    labels = {gpu.key: gpu.label for gpu in gpus}
    return tuple(
        _merge_pair(pair, f"{labels[pair.src]} -> {labels[pair.dst]}", claims[pair], ledger)
        for pair in ordered
        if pair in claims
    )


def _merge_pair(pair: Pair, name: str, claims: Sequence[_Claim], ledger: Ledger) -> PairPath:
    stated = [claim for claim in claims if claim.path.kind is not None]
    best = stated[0] if stated else claims[0]
    agreed = True
    for claim in stated[1:]:
        if not _agree(best, claim):
            agreed = False
        elif _says_more(claim.path, best.path):
            best = claim
    if not agreed:
        ledger.disagree(
            f"link {name}", ((claim.source, claim.path.label or "unknown") for claim in stated)
        )
    hops = (claim.path.hops for claim in claims if claim.path.hops is not None)
    ranks = (claim.path.performance_rank for claim in claims)
    return structs.replace(
        best.path,
        pair=pair,
        hops=next(hops, None),
        performance_rank=next((rank for rank in ranks if rank is not None), None),
        status=_status(name, claims, ledger),
    )


def _agree(a: _Claim, b: _Claim) -> bool:
    """Equal labels, or a derived label that is only less exact than the other one."""
    if a.path.label == b.path.label:
        return True
    if a.path.kind is b.path.kind is PathKind.NVLINK:
        return a.path.nvlink_count is None or b.path.nvlink_count is None
    kinds = {a.path.kind, b.path.kind}
    if kinds == _SAME_NODE:
        # A tree without host bridges (NCCL's) has one word for both.
        return a.path.derived or b.path.derived
    blind, other = (a, b) if b.path.kind in _FABRIC else (b, a)
    return (
        other.path.kind in _FABRIC
        and blind.path.kind not in _FABRIC
        and blind.path.derived
        and not blind.sees_fabric
    )


def _says_more(a: PairPath, b: PairPath) -> bool:
    if a.kind in _FABRIC and b.kind not in _FABRIC:
        return True
    if a.kind is b.kind and a.nvlink_count is not None and b.nvlink_count is None:
        return True
    return b.derived and not a.derived


def _status(name: str, claims: Sequence[_Claim], ledger: Ledger) -> dict[Capability, PeerStatus]:
    found = {}
    for capability in Capability:
        stated = ((claim.source, claim.path.status.get(capability)) for claim in claims)
        status = ledger.settle(f"{capability.value} {name}", stated)
        if status is not None:
            found[capability] = status
    if (
        found.get(Capability.READ) is PeerStatus.OK
        and found.get(Capability.ACCESS) is PeerStatus.DENIED
    ):
        _driver_against_runtime(name, claims, ledger)
    return found


def _driver_against_runtime(name: str, claims: Sequence[_Claim], ledger: Ledger) -> None:
    """The driver's table grants what the CUDA runtime then refuses: both are shown."""
    words = {Capability.READ: "driver says read", Capability.ACCESS: "CUDA runtime says access"}
    ledger.disagree(
        f"peer access {name}",
        (
            (claim.source, f"{words[capability]} {status.value}")
            for claim in claims
            for capability, status in claim.path.status.items()
            if capability in words
        ),
    )


def merge_nic_paths(
    machines: Sequence[Machine], gpu_keys: Keys, nic_keys: Keys, ledger: Ledger
) -> tuple[NicPath, ...]:
    """How near each NIC is to each GPU; a derived word gives way to a printed one like it."""
    claims: dict[tuple[str, str], list[tuple[str, NicPath]]] = {}
    for at, machine in enumerate(machines):
        for path in machine.nic_paths:
            if path.gpu in gpu_keys[at] and path.nic in nic_keys[at]:
                merged = (gpu_keys[at][path.gpu], nic_keys[at][path.nic])
                claims.setdefault(merged, []).append((", ".join(machine.sources), path))
    return tuple(_merge_nic_path(gpu, nic, stated, ledger) for (gpu, nic), stated in claims.items())


def _merge_nic_path(
    gpu: str, nic: str, claims: Sequence[tuple[str, NicPath]], ledger: Ledger
) -> NicPath:
    best = claims[0][1]
    agreed = True
    for _, path in claims[1:]:
        less_exact = {best.kind, path.kind} == _SAME_NODE and (best.derived or path.derived)
        if path.kind is not best.kind and not less_exact:
            agreed = False
        elif best.derived and not path.derived:
            best = path
    if not agreed:
        ledger.disagree(f"link {gpu} - {nic}", ((s, path.kind.value) for s, path in claims))
    return structs.replace(best, gpu=gpu, nic=nic)
