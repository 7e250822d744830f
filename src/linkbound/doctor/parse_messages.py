"""Lines of logs whose wording has one meaning: one row of the table for each (M3).

A row is a name, words that must stand in the line, and the pattern that it has to match.
"""

import re

from linkbound.doctor.types import Message, Place
from linkbound.values import Value

_LONGEST = 1200
_MOST_OF_A_KIND = 500
_QUOTED = 180
_COMMENT = re.compile(r"^\s*(?:#(?! ?(?:nvidia|NVIDIA)-smi)|//|<!--|;)")


class Wording(Value, frozen=True, kw_only=True):
    """What a known line looks like."""

    kind: str
    needles: tuple[str, ...]
    """One of them stands in every such line: the cheap test."""
    pattern: re.Pattern[str]


def _wording(kind: str, needles: tuple[str, ...], pattern: str, flags: int = 0) -> Wording:
    return Wording(kind=kind, needles=needles, pattern=re.compile(pattern, flags))


_I = re.IGNORECASE
WORDINGS = (
    _wording(
        "shm_full",
        ("No space left on device",),
        r"^(?=.*(?:/dev/shm|posix_fallocate|shared.?memory|shm_open|shmutils|shm\.(?:h|cc)|</torch_))"
        r".*No space left on device",
        _I,
    ),
    _wording(
        "shm_failed",
        ("shared memory segment", "out of shared memory", "shm_open"),
        r"(?:Error while (?:creating|attaching to) shared memory segment|"
        r"might be out of shared memory|workers are out of shared memory|shm_open.{0,40}fail)",
        _I,
    ),
    _wording("xid", ("Xid",), r"\bNVRM: Xid \((?:PCI:)?[0-9a-fA-F:.]+\): \d+"),
    _wording("static_bar1", ("tatic",), r"NVRM.*(?:kbus\w*StaticBar1|static BAR ?1.*fail)", _I),
    _wording("acs_override", ("ACS overrides enabled",), r"PCIe ACS overrides enabled"),
    _wording("nvls_error", ("transport/nvls.cc",), r"transport/nvls\.cc:\d+ (?:NCCL WARN|->)"),
    _wording("nvls_head", ("NVLS Head",), r"\bNVLS Head\b"),
    _wording(
        "path_fallback",
        ("Could not find a path for pattern",),
        r"Could not find a path for pattern .*falling back to simple order",
    ),
    _wording("smem_limit", ("ncclMaxSharedMem",), r"ncclMaxSharedMem \d+ exceeds .*maxSharedMem"),
    _wording("no_iommu_pt", ("iommu=pt",), r"(?:NCCL|RCCL) WARN Missing \"iommu=pt\""),
    _wording(
        "wsl",
        ("icrosoft", "/dev/dxg", "/usr/lib/wsl", "WSL2"),
        r"(?:-microsoft-standard|\d-Microsoft\b|(?<![\w.])/dev/dxg\b|(?<!\w)/usr/lib/wsl/|"
        r"\bdxgk(?:rnl)?:)",
    ),
    _wording(
        "no_sysfs",
        ("/sys/class/pci_bus",),
        r"Could not find real path of /sys/class/pci_bus/[0-9a-f]{4}:[0-9a-f]{2}/",
    ),
    _wording("mig", ("MIG",), r"(?:\bMIG \d+g\.\d+gb\S*\s+Device\b|UUID: MIG-)"),
    _wording(
        "container",
        (
            "not permitted",
            "ermission denied",
            "Cannot allocate memory",
            "emlock",
            "MEMLOCK",
            "locked memory",
            "initialize NVML",
            "/dev/nvidia",
            "nvidia-container-cli",
        ),
        r"(?:\b(?:mbind|set_mempolicy|move_pages|get_mempolicy|pidfd_\w+|ibv_\w+|mlock)\b.*"
        r"(?:Operation not permitted|Permission denied)|"
        r"(?:Operation not permitted|Permission denied).*(?:/sys/|/dev/(?:nvidia|infiniband|shm))|"
        r"(?:/sys/|/dev/(?:nvidia|infiniband|shm)).*"
        r"(?:Operation not permitted|Permission denied)|"
        r"\bibv_\w+ failed.*Cannot allocate memory|RLIMIT_MEMLOCK|"
        r"max locked memory.*(?:too (?:low|small))|memlock.*(?:limit|too small)|"
        r"Failed to initialize NVML: (?:Unknown Error|Insufficient Permissions)|"
        r"nvidia-container-cli: .*error|(?:open|find|stat).{0,20}/dev/nvidia\S* "
        r"(?:failed|.*No such))",
        _I,
    ),
    _wording("fm_not_needed", ("NV_WARN_NOTHING_TO_DO",), r"NV_WARN_NOTHING_TO_DO"),
    _wording(
        "fm_mismatch",
        ("driver interface version", "abric"),
        r"(?:driver interface version \S+ (?:don'?t|do not|does not) match with driver version|"
        r"fabric ?manager.*version.*(?:mismatch|does not match|don'?t match))",
        _I,
    ),
    _wording(
        "fm_failed",
        ("fabricmanager",),
        r"nvidia-fabricmanager.*(?:Failed with result|status=\d+/FAILURE|failed to start|"
        r"Active: (?:failed|inactive)|\bfailed\b)",
        _I,
    ),
    _wording(
        "not_ready",
        ("system not yet initialized", "SYSTEM_NOT_READY", "SystemNotReady"),
        r"(?:system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY|cudaErrorSystemNotReady)",
    ),
    _wording(
        "crash",
        ("failure", "error", "Error"),
        r"(?:Test (?:CUDA|NCCL|HIP) failure .*'.+'|NCCL WARN (?:Cuda|CUDA|HIP) failure\b.*|"
        r"(?:CUDA|HIP) error: (?!out of memory).+|"
        r"\b(?:ncclUnhandledCudaError|ncclInternalError|ncclSystemError|ncclRemoteError)\b.*|"
        r"NCCL error(?: in)?: .+|an illegal memory access was encountered.*|"
        r"unspecified launch failure.*)",
    ),
    _wording(
        "timeout",
        ("imeout", "imed out", "atchdog"),
        r"(?:Watchdog caught collective operation timeout|"
        r"collective operation .*(?:timed out|timeout)|"
        r"WorkNCCL\(.*ran for \d+ milliseconds before timing out|"
        r"ProcessGroupNCCL.*(?:timed out|timeout expired))",
        _I,
    ),
    _wording(
        "peer_refused",
        ("peer", "Peer", "P2P"),
        r"(?:[Pp]eer(?:-to-Peer \(P2P\))? access from .*-> .*: No\b|"
        r"peer access is not supported between these two devices|"
        r"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED|cudaErrorPeerAccessUnsupported|"
        r"can_device_access_peer\([^)]{0,40}\)\s*(?:=|:|->)?\s*False)",
    ),
    _wording(
        "peer_allowed",
        ("peer", "Peer", "P2P"),
        r"(?:[Pp]eer(?:-to-Peer \(P2P\))? access from .*-> .*: Yes\b|"
        r"can_device_access_peer\([^)]{0,40}\)\s*(?:=|:|->)?\s*True)",
    ),
    _wording(
        "peer_lacking",
        ("lacks GPU P2P capability",),
        r"platform lacks GPU P2P capability or P2P test failed",
    ),
    _wording(
        "p2p_off",
        ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"),
        r"^(?:.*\bNCCL_P2P_DISABLE set by environment to 1\b.*|"
        r".*\bNCCL_P2P_LEVEL set by environment to (?:LOC|0)\b.*|"
        r"\s*(?:export |declare -x |ENV |env |set |setenv |-\s*(?:name:\s*)?|-e\s+)?[\"']?"
        r"NCCL_P2P_DISABLE[\"']?\s*[=: ]\s*[\"']?1[\"']?\s*[,;\\]*\s*|"
        r"\s*(?:[\w.@:~-]*[$>]\s+)?(?:env\s+)?(?:\w+=\S*\s+)*NCCL_P2P_DISABLE=1\s+[\w./].*)$",
    ),
    _wording(
        "passthrough",
        ("hostpci", "vfio-pci", "x-nv-gpudirect-clique", "<hostdev"),
        r"(?:^\s*hostpci\d+:|device\.hostpci\d|-device[ =][\"']?vfio-pci|x-nv-gpudirect-clique|"
        r"<hostdev\b.*pci)",
    ),
    _wording(
        "hypervisor",
        ("ypervisor", "QEMU", "systemd-detect-virt"),
        r"(?:Hypervisor detected: \w+|DMI: QEMU|Hypervisor vendor: *\w+|"
        r"Booting paravirtualized kernel on KVM)",
    ),
    _wording(
        "empty_affinity",
        ("Affinity for GPU",),
        r"Affinity for GPU \d+ is empty, ignoring",
    ),
    _wording(
        "iommu_default",
        ("Default domain type",),
        r"iommu: Default domain type: (?:Translated|Passthrough)",
    ),
    _wording("iommu_group", ("Adding to iommu group",), r": Adding to iommu group \d+"),
    _wording("iommu_enabled", ("IOMMU enabled",), r"DMAR: IOMMU enabled"),
    _wording(
        "group_type",
        ("/type",),
        r"iommu_groups/\d+/type\s*[:=]?\s*(?:DMA|DMA-FQ|identity)\s*$",
    ),
)
"""Every wording that is known, with the kind under which the rules look for it."""


def parse_messages(text: str, source: str) -> tuple[Message, ...]:
    """The known lines of `text`, in order; comments prove nothing and are passed over."""
    wordings = [w for w in WORDINGS if any(needle in text for needle in w.needles)]
    if not wordings:
        return ()
    counts: dict[str, int] = {}
    found = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw[:_LONGEST]
        for wording in wordings:
            if not any(needle in line for needle in wording.needles) or _COMMENT.match(line):
                continue
            if counts.get(wording.kind, 0) < _MOST_OF_A_KIND and wording.pattern.search(line):
                counts[wording.kind] = counts.get(wording.kind, 0) + 1
                place = Place(source=source, line=number)
                quoted = " ".join(line.split())[:_QUOTED]
                found.append(Message(place=place, kind=wording.kind, text=quoted))
    return tuple(found)
