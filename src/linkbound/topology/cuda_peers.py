"""What CUDA's driver grants each ordered pair: access, atomics, performance rank (M2).

Asked in a child: this process never initialises CUDA, and no context is left behind.
"""

import sys
from collections.abc import Sequence

import msgspec

from linkbound.evidence.child import ChildResult, child_environment, run
from linkbound.topology.identifiers import normal_bus_id
from linkbound.topology.types import Capability, Gpu, Machine, Pair, PairPath, PeerStatus
from linkbound.values import Value

SOURCE = "CUDA"
LIMIT_S = 60.0
"""cuInit alone takes seconds on a host of many GPUs without persistence mode."""
_CHILD = (sys.executable, "-m", "linkbound.topology.cuda_child")
# CUDA must see all GPUs that NVML sees, in the same order.
_HIDING = ("CUDA_VISIBLE_DEVICES",)


class _Answer(Value, frozen=True, kw_only=True):
    src: int
    dst: int
    access: int | None
    native_atomics: int | None
    performance_rank: int | None


class _Answers(Value, frozen=True, kw_only=True):
    bus_ids: dict[int, str | None]
    pairs: tuple[_Answer, ...]


def probe_cuda(child: Sequence[str] = _CHILD) -> Machine:
    """GPUs and pairs as CUDA sees them; a note where it does not answer."""
    environment = child_environment({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, drop=_HIDING)
    result = run(child, env=environment, limit_s=LIMIT_S)
    if not result.ok:
        return _nothing(_ending(result))
    try:
        answers = msgspec.json.decode(result.stdout, type=_Answers)
    except msgspec.MsgspecError as error:
        return _nothing(f"its answer is no answer ({error})")
    labels = {ordinal: f"GPU{ordinal}" for ordinal in answers.bus_ids}
    gpus = tuple(
        Gpu(key=labels[ordinal], label=labels[ordinal], bus_id=normal_bus_id(bus_id or ""))
        for ordinal, bus_id in answers.bus_ids.items()
    )
    return Machine(
        sources=(SOURCE,),
        gpus=gpus,
        pairs=tuple(
            PairPath(
                pair=Pair(src=labels[one.src], dst=labels[one.dst]),
                status=_status(one),
                performance_rank=one.performance_rank,
            )
            for one in answers.pairs
            if one.src in labels and one.dst in labels
        ),
    )


def _status(answer: _Answer) -> dict[Capability, PeerStatus]:
    said = {
        Capability.ACCESS: answer.access,
        Capability.NATIVE_ATOMICS: answer.native_atomics,
    }
    return {
        capability: PeerStatus.OK if granted else PeerStatus.DENIED
        for capability, granted in said.items()
        if granted is not None
    }


def _ending(result: ChildResult) -> str:
    if result.timed_out:
        return f"no answer in {LIMIT_S:.0f} s"
    words = result.stderr.decode("utf-8", "replace").strip().splitlines()
    return words[-1] if words else f"ended by {result.ended_by or result.exit_code}"


def _nothing(reason: str) -> Machine:
    note = f"CUDA was not asked about peers: {reason}. Its access, atomics and rank are unknown."
    return Machine(sources=(SOURCE,), notes=(note,))
