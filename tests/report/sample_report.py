"""A Report of the recorded H200 pair, made by the layers below: what a study hands to renderers."""

import hashlib
from functools import cache
from importlib import resources

import msgspec

from linkbound.evidence.types import Finding, Level, Severity
from linkbound.links import Arm, Curve, PairLatency, PairRate, fit, read_links
from linkbound.model import parse_config
from linkbound.model.types import Load, ModelShape
from linkbound.predict.book import CurveBook
from linkbound.predict.calibrate import calibrate
from linkbound.predict.defaults import device_facts, prior_calibration
from linkbound.predict.forecast import forecast, plan_on
from linkbound.predict.points import Prediction, observation, predict_specs
from linkbound.predict.regimes import regime_map
from linkbound.predict.score import score
from linkbound.predict.score_types import Score
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Forecast, Plan
from linkbound.report.types import CurveShown, Evidence, LoadShown, MapShown, Report, SplitShown
from linkbound.serve import VLLM, EngineRun, RunSpec, parse_runs
from linkbound.splits import Fit, Phase, Split, crossings, fit_machine
from linkbound.topology import Machine, fingerprint, merge, read_machine
from linkbound.verdict.break_even import break_even
from linkbound.verdict.compare import MIN_GAIN
from linkbound.verdict.decide import Case, decide
from linkbound.verdict.types import Verdict

RECORDED = resources.files("linkbound") / "recorded" / "h200-pair"
GPUS = ("GPU0", "GPU1")
NCCL_TESTS = ("all_reduce", "all_reduce.graph", "alltoall", "sendrecv")
LOADS = (
    Load(prompt_tokens=1024, output_tokens=256, concurrency=1),
    Load(prompt_tokens=1024, output_tokens=256, concurrency=32),
)
SPLITS = (Split(), Split(replicas=2), Split(tp=2), Split(pp=2))
SEEN_TAGS = ("llama8b_tp1", "llama8b_tp2_nccl")


def record_id(name: str) -> str:
    """A record id as a study would give one: 64 hexadecimal digits."""
    return hashlib.sha256(name.encode()).hexdigest()


@cache
def sample_report() -> Report:
    """Llama 8B on the recorded H200 pair, two loads, every stage present."""
    machine = _machine()
    shape = _shape()
    curves, rates, latencies = _links()
    book = CurveBook(machine, curves, rates, direct_limit_bytes=VLLM.direct_all_reduce_limit_bytes)
    runs = parse_runs((RECORDED / "vllm-0.24.0" / "runs.jsonl").read_bytes(), "runs.jsonl")
    known = tuple(run for run in runs if run.tag in SEEN_TAGS)
    calibration = msgspec.structs.replace(
        calibrate(
            prior_calibration(device_facts(machine.gpus[0], rates)),
            known,
            {"llama8b": shape},
            book,
            VLLM,
        ),
        record_ids=(record_id("runs"),),
    )
    engine = Engine(shape, book, VLLM, calibration)
    forecasts = {load: _forecasts(engine, machine, load) for load in LOADS}
    fits = tuple(fit_machine(shape, split, machine, LOADS[1]) for split in SPLITS)
    return Report(
        machine_name="h200-pair",
        recorded=True,
        machine_note="All figures are from the recorded machine h200-pair, not from this host.",
        machine=machine,
        fingerprint=fingerprint(machine),
        machine_record_ids=(record_id("topo"),),
        shape=shape,
        model_record_ids=(record_id("model"),),
        engine=f"vLLM scheduler rules: {VLLM.source}",
        excluded={},
        curves=tuple(
            CurveShown(curve=one, fit=fit(one), record_ids=one.record_ids) for one in curves
        ),
        pair_rates=rates,
        pair_latencies=latencies,
        link_record_ids=(record_id("nvbandwidth"),),
        fits=fits,
        fit_record_ids=(record_id("fit"),),
        splits=tuple(_split(shape, split) for split in SPLITS),
        calibration=calibration,
        loads=tuple(
            LoadShown(
                load=load,
                forecasts=forecasts[load],
                verdict=_verdict(engine, load, forecasts[load], fits),
                record_ids=(record_id(f"verdict {load.concurrency}"),),
            )
            for load in LOADS
        ),
        maps=tuple(
            MapShown(
                plan=plan,
                cells=regime_map(engine, plan, plan_on(machine, Split(), None)),
                record_ids=(record_id("map"),),
            )
            for plan in _plans(machine)
            if plan.arm is not None
        ),
        score=_score(engine, runs),
        score_record_ids=(record_id("runs"), record_id("score")),
        findings=(
            Finding(
                code="staged-is-slow",
                level=Level.SEEN,
                severity=Severity.WARNING,
                seen="With peer-to-peer off a 64 MiB all-reduce takes 13 times as long.",
                why="A container without peer access would fall back to this path in silence.",
                remedy="Check the NCCL log for 'via P2P' before serving.",
                record_ids=(record_id("nccl-tests all_reduce.p2p-off"),),
            ),
        ),
        not_known=("The engine's own all-reduce was not timed here: a published row stands in.",),
        commands=(
            "CUDA_VISIBLE_DEVICES=0,1 numactl --cpunodebind=0 --membind=0 "
            "vllm serve llama8b --tensor-parallel-size 2",
        ),
        study_path="llama8b.study",
        evidence=_evidence(),
        versions={"linkbound": "0.1.0", "python": "3.11.7"},
    )


def _machine() -> Machine:
    names = ("topo-m.txt", "topo-p2p-r.txt", "smi-q.txt", "nvlink-status.txt", "nccl-topo.xml")
    return merge([read_machine((RECORDED / name).read_bytes(), name) for name in names])


def _shape() -> ModelShape:
    config = RECORDED / "vllm-0.24.0" / "configs" / "llama8b" / "config.json"
    return parse_config(config.read_text(), "llama8b/config.json")


def _links() -> tuple[tuple[Curve, ...], tuple[PairRate, ...], tuple[PairLatency, ...]]:
    curves: list[Curve] = []
    for test in NCCL_TESTS:
        for arm in ("p2p-on", "p2p-off"):
            name = f"{test}.{arm}.txt"
            data = (RECORDED / "nccl-tests" / name).read_bytes()
            ids = (record_id(f"nccl-tests {test}.{arm}"),)
            found = read_links(data, name, group=GPUS)
            curves += [msgspec.structs.replace(one, record_ids=ids) for one in found.curves]
    copies = read_links((RECORDED / "peer-copies.txt").read_bytes(), "peer-copies.txt")
    ids = (record_id("peer-copies"),)
    curves += [msgspec.structs.replace(one, record_ids=ids) for one in copies.curves]
    pairs = read_links((RECORDED / "nvbandwidth.json").read_bytes(), "nvbandwidth.json")
    return tuple(curves), pairs.pair_rates, pairs.latencies


def _plans(machine: Machine) -> tuple[Plan, ...]:
    alone = tuple(plan_on(machine, split, None) for split in SPLITS[:2])
    tensor = tuple(plan_on(machine, Split(tp=2), arm) for arm in (Arm.P2P, Arm.NCCL, Arm.STAGED))
    pipeline = tuple(plan_on(machine, Split(pp=2), arm) for arm in (Arm.NCCL, Arm.STAGED))
    return (*alone, *tensor, *pipeline)


def _forecasts(engine: Engine, machine: Machine, load: Load) -> tuple[Forecast, ...]:
    return tuple(forecast(engine, plan, load) for plan in _plans(machine))


def _verdict(
    engine: Engine, load: Load, forecasts: tuple[Forecast, ...], fits: tuple[Fit, ...]
) -> Verdict:
    case = Case(load=load, forecasts=forecasts, fits=fits, gain_error=engine.calibration.gain_error)
    found = decide(case)
    plans = tuple(
        msgspec.structs.replace(
            one, break_even=break_even(engine, one.plan, load, forecasts[0], MIN_GAIN)
        )
        for one in found.plans
    )
    return msgspec.structs.replace(found, plans=plans)


def _split(shape: ModelShape, split: Split) -> SplitShown:
    decode = crossings(shape, split, Phase.DECODE, 1, 1)
    prefill = crossings(shape, split, Phase.PREFILL, 1024, 1)
    return SplitShown(
        split=split,
        load=LOADS[0],
        crossings=(*decode, *prefill),
        record_ids=(record_id(f"crossings {split.name}"),),
    )


def _score(engine: Engine, runs: tuple[EngineRun, ...]) -> Score:
    seen = {run.spec for run in runs if run.tag in SEEN_TAGS}

    def is_seen(spec: RunSpec, _: str) -> bool:
        return spec in seen

    found = predict_specs(tuple(run.spec for run in runs), lambda _: engine, is_seen)
    return score(
        [
            (one, observation(run))
            for one, run in zip(found, runs, strict=True)
            if isinstance(one, Prediction)
        ]
    )


def _evidence() -> tuple[Evidence, ...]:
    measured = [f"nccl-tests {test}.{arm}" for test in NCCL_TESTS for arm in ("p2p-on", "p2p-off")]
    rows = [_row(name, "links.curve", "measured", "nccl-tests") for name in measured]
    rows += [
        _row("topo", "topology.source", "measured", "nvidia-smi"),
        _row("nvbandwidth", "links.pairs", "measured", "nvbandwidth"),
        _row("peer-copies", "links.curve", "measured", "cudaMemcpyPeerAsync"),
        _row("model", "model.shape", "stated", "config.json"),
        _row("runs", "serve.runs", "measured", "vllm bench"),
        _row("fit", "splits.fit", "derived", "fit"),
        _row("map", "predict.map", "predicted", "regime_map"),
        _row("score", "predict.score", "derived", "score"),
    ]
    rows += [_row(f"crossings {one.name}", "splits.crossings", "derived", "c") for one in SPLITS]
    for load in LOADS:
        rows.append(_row(f"verdict {load.concurrency}", "verdict.case", "derived", "decide"))
    return tuple(rows)


def _row(name: str, kind: str, outcome: str, method: str) -> Evidence:
    parents = (record_id("runs"),) if outcome in ("derived", "predicted") else ()
    return Evidence(
        id=record_id(name),
        kind=kind,
        subject={"name": name},
        outcome=outcome,
        method=method,
        summary=f"What {name} says, in one line.",
        parents=parents,
    )
