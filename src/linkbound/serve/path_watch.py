"""Watches the ports of a contender's GPUs around its cells: the third witness of its path (P3).

watch = PathWatch(meter, run, contender)
watch.rest()                      the servers are ready, no load yet
watch.begin()
...                               a cell, or a batch in a child
seen = watch.end(moved, logs)
"""

from collections.abc import Mapping, Sequence

import msgspec

from linkbound.errors import LinkboundError
from linkbound.evidence.types import Finding, Reason
from linkbound.links.live.meter import TrafficMeter
from linkbound.links.log_types import NcclChoice
from linkbound.links.traffic import Traffic, of_gpus
from linkbound.model.read_model import read_model
from linkbound.model.types import ModelShape
from linkbound.serve.contenders import Contender, ServeRun
from linkbound.serve.counters import counter_witness
from linkbound.serve.engines import ENGINES
from linkbound.serve.expected import expected_bytes, expected_copies
from linkbound.serve.moved import Moved
from linkbound.serve.path_types import EngineLog, OwnReduce, PathVerdict, Witness
from linkbound.serve.trace_files import parse_trace_log
from linkbound.serve.traffic_check import TrafficCheck, check_traffic, traffic_findings
from linkbound.serve.witnesses import judge
from linkbound.splits.wire import Wire, WireBytes
from linkbound.values import Value

# Engines whose crossings splits/ counts: two tensors to the next stage, logits gathered, NCCL
# beside an all-reduce of their own.
_COUNTED = ("vllm", "vllm-offline", "sglang")


class Seen(Value, frozen=True, kw_only=True):
    """What passed in one window, what was to pass, and the verdict of all witnesses on it."""

    traffic: Traffic
    check: TrafficCheck
    witness: Witness
    verdict: PathVerdict
    findings: tuple[Finding, ...]
    """Of the verdict, and where bytes miss what was expected."""


class PathWatch:
    """One start of a contender. Without counters its windows say why."""

    def __init__(self, meter: TrafficMeter, run: ServeRun, contender: Contender) -> None:
        self._meter = meter
        self._contender = contender
        self._engine = run.engine
        self._copies = run.engine in ENGINES and ENGINES[run.engine].stages_in_turn
        self._shape = _shape_of(run.model) if contender.arm is not None else None
        self._gpus = {f"GPU{number}" for number in run.devices[: contender.split.gpus]}
        rules = ENGINES[run.engine].rules if run.engine in ENGINES else None
        self._own_limit_bytes = rules.direct_all_reduce_limit_bytes if rules else 0

    def rest(self) -> None:
        """Take the baseline: what passes while the engine waits."""
        self._meter.rest()

    def begin(self) -> None:
        """A window begins."""
        self._meter.begin()

    def end(self, moved: Moved | Reason, logs: Mapping[str, bytes]) -> Seen:
        """The window ends. `moved`: the tokens that went through; `logs`: all that was written."""
        traffic = self._meter.end()
        if self._gpus:
            traffic = of_gpus(traffic, self._gpus)
        found = [parse_trace_log(data, name) for name, data in logs.items()]
        nccl = [log for one in found for log in one.nccl]
        engines = [log for one in found for log in one.engines]
        choices = tuple(choice for log in nccl for choice in log.choices)
        expected = self._expected(moved, engines, choices)
        check = check_traffic(traffic, self._contender.arm, expected)
        least = expected.low_bytes if isinstance(expected, WireBytes) else None
        witness = counter_witness(traffic, least)
        verdict = judge(nccl, engines, (witness,))
        return Seen(
            traffic=traffic,
            check=check,
            witness=witness,
            verdict=verdict,
            findings=(*verdict.findings, *traffic_findings(self._contender.name, check)),
        )

    def _expected(
        self,
        moved: Moved | Reason,
        engines: Sequence[EngineLog],
        choices: tuple[NcclChoice, ...],
    ) -> WireBytes | Reason | None:
        """What is to cross; None where nothing is split, a Reason where it is not known."""
        arm = self._contender.arm
        if arm is None:
            return None
        if isinstance(moved, Reason):
            return moved
        if self._engine not in _COUNTED and not self._copies:
            text = f"What {self._engine} makes cross a token is not counted here."
            return Reason(code="crossings-unknown", text=text)
        if not isinstance(self._shape, ModelShape):
            return self._shape
        off = any(log.own_reduce is OwnReduce.OFF for log in engines)
        wire = Wire(
            split=msgspec.structs.replace(self._contender.split, replicas=1),
            arm=arm,
            own_limit_bytes=0 if off else self._own_limit_bytes,
            choices=choices,
            copies=self._copies,
        )
        if self._copies:
            return _copied(self._shape, wire, moved)
        return expected_bytes(self._shape, wire, moved, _graph_sizes(engines))


def _copied(shape: ModelShape, wire: Wire, moved: Moved) -> WireBytes | Reason:
    try:
        return expected_copies(shape, wire, moved)
    except ValueError as error:
        return Reason(code="crossings-unknown", text=f"What crosses a token: {error}.")


def _shape_of(model: str) -> ModelShape | Reason:
    try:
        return read_model(model)
    except LinkboundError as error:
        return Reason(code="model-unknown", text=f"The model's sizes are not known: {error}")


def _graph_sizes(engines: Sequence[EngineLog]) -> tuple[int, ...]:
    """Batches with a CUDA graph, by the engine's own words; empty where it says none."""
    said = next((text for log in engines if (text := log.facts.get("graph_sizes"))), "")
    return tuple(sorted(int(size) for size in said.split(",") if size.strip()))
