"""Figures published by others, used by name where this machine has no measurement (E3)."""

from itertools import permutations

from linkbound.evidence.types import Provenance
from linkbound.links.types import Arm, Curve, CurveKey, CurvePoint, Launch, Operation
from linkbound.topology.types import Machine, PathKind

# AIConfigurator 0.12.0 (Apache-2.0), shipped table of vLLM's custom all-reduce in a CUDA graph on
# two H200 joined by NVLink, bf16: bytes of the message and microseconds.
_H200_ENGINE_ALL_REDUCE = (
    (8_192, 4.6),
    (65_536, 4.8),
    (262_144, 5.2),
    (2_097_152, 12.4),
    (8_388_608, 43.0),
    (67_108_864, 281.0),
)
# Tables of other hosts and versions of the same GPU agree with ours to about this (predicting
# notes, section 8: measured curves explain a link's effect within 15 %).
PRIOR_SPREAD = 0.25
SOURCE = "prior: AIConfigurator 0.12.0, vLLM custom all-reduce, 2x H200 NVLink, graph"


def engine_all_reduce_prior(machine: Machine, group: tuple[str, ...]) -> Curve | None:
    """The published curve of the engine's own all-reduce; None where none is known for the GPUs.

    The table is of NVLink: it says nothing of the same GPUs over PCIe, or over an unknown path.
    """
    models = [machine.gpu(label).model or "" for label in group]
    if len(group) != 2 or not all("H200" in model for model in models):
        return None
    paths = (machine.path(src, dst) for src, dst in permutations(group, 2))
    if any(path.kind is not PathKind.NVLINK for path in paths):
        return None
    return Curve(
        key=CurveKey(
            operation=Operation.ALL_REDUCE,
            implementation="engine",
            group=group,
            arm=Arm.P2P,
            launch=Launch.GRAPH,
            method="published table",
        ),
        points=tuple(
            CurvePoint(
                size_bytes=size,
                time_s=time_us * 1e-6,
                low_s=time_us * 1e-6 * (1 - PRIOR_SPREAD),
                high_s=time_us * 1e-6 * (1 + PRIOR_SPREAD),
            )
            for size, time_us in _H200_ENGINE_ALL_REDUCE
        ),
        provenance=Provenance.PRIOR,
        source=SOURCE,
    )
