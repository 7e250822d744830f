"""Who grants peer access and who refuses it: driver, CUDA, environment, NCCL's rule (M2, M3)."""

import re
from collections.abc import Iterator

from linkbound.doctor.identity import identity, kinds, same_gpus
from linkbound.doctor.parse_module_options import forbids_peers
from linkbound.doctor.parts import model_of
from linkbound.doctor.types import Facts
from linkbound.doctor.vocabulary import by_source, listed, seen, suspected
from linkbound.evidence.types import Finding
from linkbound.links.log_types import NcclLog, TransportKind
from linkbound.topology.types import Capability, Gpu, Machine, PathKind, PeerStatus

_ASKED = (Capability.READ, Capability.WRITE)
"""What a transfer needs. NVML answers NS for atomics and NVLink on healthy PCIe pairs."""
_REFUSALS = {
    PeerStatus.GPU_NOT_SUPPORTED: "p2p-denied-gns",
    PeerStatus.CHIPSET_NOT_SUPPORTED: "p2p-denied-cns",
    PeerStatus.TOPOLOGY_NOT_SUPPORTED: "p2p-denied-tns",
    PeerStatus.DISABLED_BY_REGKEY: "p2p-denied-regkey",
    PeerStatus.NOT_SUPPORTED: "p2p-not-granted",
}
_ORDER = (
    PathKind.NVLINK,
    PathKind.C2C,
    PathKind.PIX,
    PathKind.PXB,
    PathKind.PHB,
    PathKind.NODE,
    PathKind.SYS,
)
_LEVELS = {"NVL": 0, "PIX": 2, "PXB": 3, "PHB": 4, "SYS": 6, "NODE": 4}
_NUMBERS = {"1": "PIX", "2": "PXB", "3": "PHB", "4": "SYS", "5": "SYS"}
_LAUNCHERS = re.compile(
    r"\b(vllm|sglang|torchrun|accelerate|deepspeed|mpirun|srun|axolotl|llama[-_.]?factory|"
    r"text-generation-inference|lightning|xinference|lmdeploy|trl|unsloth)\b",
    re.I,
)


def denied(facts: Facts) -> Iterator[Finding]:
    """What nvidia-smi's peer matrix, or NVML itself, refuses for reading or writing."""
    for machine in facts.machines:
        labels = {gpu.key: gpu.label for gpu in machine.gpus}
        pairs: dict[PeerStatus, list[str]] = {}
        for path in machine.pairs:
            for status in {path.status.get(capability) for capability in _ASKED}:
                if status in _REFUSALS:
                    name = f"{labels[path.pair.src]}->{labels[path.pair.dst]}"
                    pairs.setdefault(status, []).append(name)
        for status, names in pairs.items():
            text = f"{status.value} for {listed(names)} ({machine.sources[0]})."
            yield seen(_REFUSALS[status], text)


def registry_forbids(facts: Facts) -> Iterator[Finding]:
    """Module options that switch peer access off."""
    for option in facts.registry:
        if forbids_peers(option):
            yield seen("p2p-denied-regkey", f"{option.key}={option.value} ({option.place}).")


def refused(facts: Facts) -> Iterator[Finding]:
    """What the CUDA runtime and the libraries say of pairs."""
    for source in dict.fromkeys(source for source, _ in facts.access):
        pairs = [
            f"{one.src}->{one.dst}"
            for name, one in facts.access
            if name == source and not one.granted
        ]
        if pairs:
            text = f"CUDA refuses peer access for {listed(pairs)} ({source})."
            yield seen("p2p-not-granted", text)
    for log in facts.logs:
        if log.refusals:
            text = f"{listed((one.text for one in log.refusals), 4)} ({log.source})."
            yield seen("p2p-not-granted", text)
    messages = [message for message in facts.messages if message.kind == "peer_refused"]
    if messages:
        where = by_source(message.place for message in messages)
        yield seen("p2p-not-granted", f"{messages[0].text} ({where}).")
    for message in facts.messages:
        if message.kind == "peer_lacking":
            yield suspected("p2p-not-granted", f"{message.text} ({message.place}).")


def grant_disagrees(facts: Facts) -> Iterator[Finding]:
    """The same pair OK in `topo -p2p` and refused by CUDA."""
    for source in dict.fromkeys(source for source, _ in facts.access):
        no = {
            (one.src, one.dst) for name, one in facts.access if name == source and not one.granted
        }
        for machine in facts.machines:
            if not same_gpus(identity(facts, source), identity(facts, machine.sources[0])):
                continue
            order = _nvml_order(facts, source)
            ok = {pair for pair, status in _statuses(machine).items() if status is PeerStatus.OK}
            both = sorted((src, dst) for src, dst in no if (order[src], order[dst]) in ok)
            if both and order:
                pairs = listed(f"{src}->{dst}" for src, dst in both)
                text = f"{pairs}: OK in {machine.sources[0]}, refused by CUDA in {source}."
                yield seen("grant-disagrees", text)


def _statuses(machine: Machine) -> dict[tuple[str, str], PeerStatus]:
    labels = {gpu.key: gpu.label for gpu in machine.gpus}
    return {
        (labels[path.pair.src], labels[path.pair.dst]): path.status[Capability.READ]
        for path in machine.pairs
        if Capability.READ in path.status
    }


class _SameLabels(dict[str, str]):
    """CUDA ordinals are taken for NVML's where no bus id says otherwise."""

    def __missing__(self, label: str) -> str:
        return label


def _nvml_order(facts: Facts, source: str) -> dict[str, str]:
    """NVML's label of each CUDA ordinal: NVML counts by bus id, CUDA by speed unless told."""
    listed_gpus: list[Gpu] = [
        gpu
        for machine in facts.machines
        if machine.sources[0] == source
        for gpu in machine.gpus
        if gpu.bus_id
    ]
    ranked = sorted(listed_gpus, key=lambda gpu: gpu.bus_id or "")
    return _SameLabels({gpu.label: f"GPU{index}" for index, gpu in enumerate(ranked)})


def mixed_models(facts: Facts) -> Iterator[Finding]:
    """Two or more models among the GPUs that one input lists."""
    for machine in facts.machines:
        for vendor in ("NVIDIA", "AMD"):
            names = {
                gpu.label: name
                for gpu in machine.gpus
                if gpu.vendor == vendor and "VGA" not in _class_of(gpu)
                if (name := model_of(gpu) or gpu.device_id)
            }
            if len(set(names.values())) > 1:
                each = listed(f"{label} {name}" for label, name in names.items())
                yield seen("mixed-gpu-models", f"{each} ({machine.sources[0]}).")
    for run in facts.runs:
        ranks = {f"rank {device.rank}": device.name for device in run.devices if device.name}
        if len(set(ranks.values())) > 1:
            each = listed(f"{rank} {name}" for rank, name in ranks.items())
            yield seen("mixed-gpu-models", f"{each} ({run.source}).")


def _class_of(gpu: Gpu) -> str:
    """AMD's processor graphics are display adapters; its compute cards are not."""
    return gpu.facts.get("Class", "") if gpu.vendor == "AMD" else ""


def disabled_by_environment(facts: Facts) -> Iterator[Finding]:
    """The variable in a log or in an environment that was posted."""
    found: dict[str, list[str]] = {}
    for message in facts.messages:
        if message.kind == "p2p_off":
            found.setdefault(message.place.source, []).append(f"{message.text} ({message.place})")
    for source, lines in found.items():
        launcher = _launcher(facts, source)
        who = f" The input names {launcher}: look there first." if launcher else ""
        yield seen("p2p-disabled-by-env", f"{listed(lines, 2)}.{who}")
    variables = facts.environment.variables if facts.environment else {}
    if variables.get("NCCL_P2P_DISABLE") == "1":
        yield seen("p2p-disabled-by-env", "NCCL_P2P_DISABLE=1 in the environment of this process.")
    elif (level := variables.get("NCCL_P2P_LEVEL")) in ("LOC", "0"):
        yield seen("p2p-disabled-by-env", f"NCCL_P2P_LEVEL={level} in this environment.")


def _launcher(facts: Facts, source: str) -> str | None:
    text = next((text.text for text in facts.texts if text.source == source), "")
    found = _LAUNCHERS.search(text, 0, 1 << 20)
    return found[1] if found else None


def closes_p2p(log: NcclLog) -> bool:
    """Whether the environment of this run switched peer transports off."""
    level = log.settings.get("NCCL_P2P_LEVEL")
    return log.settings.get("NCCL_P2P_DISABLE") == "1" or level in ("LOC", "0")


def policy_off(facts: Facts) -> Iterator[Finding]:
    """NCCL leaves peer access out although the driver grants it."""
    for log in facts.logs:
        if closes_p2p(log) or log.refusals:
            continue
        direct = any(one.kind is TransportKind.P2P for one in log.transports)
        if any(kind.all_cuda and not kind.all_direct for kind in log.p2p_types) and not direct:
            text = f"isAllCudaP2p 1 with isAllDirectP2p 0 ({log.source})."
            yield seen("p2p-policy-off", text)
        elif farther := _beyond_level(facts, log):
            yield farther


def _beyond_level(facts: Facts, log: NcclLog) -> Finding | None:
    """A pair on shared memory that is farther apart than the level which the log prints."""
    printed = log.settings.get("NCCL_P2P_LEVEL", "")
    level = _LEVELS.get(_NUMBERS.get(printed, printed))
    staged = [one for one in log.transports if one.kind is TransportKind.SHM]
    far = {path.type for path in log.paths if level is not None and _is_beyond(path.type, level)}
    if staged and far and len(staged) == len(log.transports):
        text = f"NCCL_P2P_LEVEL={printed}, paths of type {listed(sorted(far))}, channels via SHM"
        return seen("p2p-policy-off", f"{text} ({log.source}).")
    for machine in facts.machines if staged else ():
        if not _covers(facts, log, machine):
            continue
        paths = kinds(machine)
        for one in staged:
            pair = (f"GPU{one.src_device}", f"GPU{one.dst_device}")
            kind = paths.get(pair)
            if kind not in _ORDER:
                continue
            where = f"{pair[0]}->{pair[1]} is {kind} ({machine.sources[0]})"
            if level is not None and _ORDER.index(kind) > level:
                text = f"NCCL_P2P_LEVEL={printed} ({log.source}) and {where}: it uses SHM."
                return seen("p2p-policy-off", text)
            if level is None and _ORDER.index(kind) > _LEVELS["PXB"]:
                text = f"{where} and uses SHM in {log.source}: farther than NCCL's default level."
                return suspected("p2p-policy-off", text)
    return None


def _is_beyond(kind: str, level: int) -> bool:
    return any(kind == one.value and _ORDER.index(one) > level for one in _ORDER)


def _covers(facts: Facts, log: NcclLog, machine: Machine) -> bool:
    """Whether the log's device numbers are indices of this machine's GPUs."""
    devices = {one.src_device for one in log.transports} | {o.dst_device for o in log.transports}
    labels = {gpu.label for gpu in machine.gpus}
    known = bool(kinds(machine)) and all(f"GPU{device}" in labels for device in devices)
    ours, theirs = identity(facts, log.source), identity(facts, machine.sources[0])
    return known and not (ours.buses and theirs.buses and not ours.buses & theirs.buses)


def env_suspected(facts: Facts) -> Iterator[Finding]:
    """A pair with NVLink or a grant that uses shared memory, and no line that says why."""
    for log in facts.logs:
        if closes_p2p(log) or log.refusals or not log.transports:
            continue
        staged = [one for one in log.transports if one.kind is TransportKind.SHM]
        for machine in facts.machines if staged else ():
            if not _covers(facts, log, machine):
                continue
            paths = kinds(machine)
            linked = [
                f"GPU{one.src_device}->GPU{one.dst_device}"
                for one in staged
                if paths.get((f"GPU{one.src_device}", f"GPU{one.dst_device}")) is PathKind.NVLINK
            ]
            if linked:
                text = f"{listed(linked)}: NVLink in {machine.sources[0]}, SHM in {log.source}."
                yield suspected("p2p-disabled-by-env", text)


def waived(facts: Facts) -> Iterator[Finding]:
    """Tests between GPUs that nvbandwidth did not run."""
    for run in facts.nvbandwidth:
        if run.waived and run.count > 1:
            text = f"{run.count} GPUs, and {listed(run.waived, 3)} waived ({run.source})."
            yield seen("waived-no-p2p", text)


def equal_matrices(facts: Facts) -> Iterator[Finding]:
    """Switching peer access on changes nothing, and no line says who may access whom."""
    for source in dict.fromkeys(matrix.source for matrix in facts.matrices):
        if any(name == source for name, _ in facts.access):
            continue
        slower, times = _alike_rates(facts, source), _alike_times(facts, source)
        if slower and times:
            text = f"P2P enabled and disabled are equal in rate and latency ({source})."
            yield suspected("p2p-not-granted", text)


def _alike_rates(facts: Facts, source: str) -> bool:
    cells: dict[str, dict[tuple[str, str], float]] = {"enabled": {}, "disabled": {}}
    for matrix in facts.matrices:
        if matrix.source == source and matrix.switch.value in cells and not matrix.both_ways:
            cells[matrix.switch.value].update(matrix.cells)
    shared = cells["enabled"].keys() & cells["disabled"].keys()
    ratios = [cells["enabled"][pair] / cells["disabled"][pair] for pair in shared]
    return bool(ratios) and all(0.95 < ratio < 1.05 for ratio in ratios)


def _alike_times(facts: Facts, source: str) -> bool:
    """Issue intervals of peer copies fall several times where peer access is real."""
    times: dict[str, list[float]] = {"Enabled": [], "Disabled": []}
    for name, one in facts.latencies:
        if name == source and one.src != one.dst and "(GPU)" in one.method:
            times["Enabled" if "P2P=Enabled" in one.method else "Disabled"].append(one.latency_s)
    if not all(times.values()):
        return False
    return sum(times["Enabled"]) > 0.7 * sum(times["Disabled"])
