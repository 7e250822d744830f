"""Constants of an engine on a GPU from a few of its own runs: physics first, then least squares.

Every constant starts from a prior with a stated spread; runs pull it, and what they cannot tell
apart stays at the prior. Nothing is fitted per model: other shapes get other bytes, FLOPs and
layers (predicting notes, section 3).
"""

import math
from collections.abc import Callable, Mapping

import msgspec

from linkbound.evidence.types import Provenance
from linkbound.model.types import Load, ModelShape
from linkbound.predict.book import CurveBook
from linkbound.predict.calibration import Calibration, Constant, Seen
from linkbound.predict.forecast import call_cost, plan_on
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Estimate
from linkbound.predict.work import rank_work
from linkbound.serve.types import EngineRun, RunSpec, SchedulerRules
from linkbound.splits.types import Split

ITERATIONS = 12
DIFFERENCE = 1e-4
# A call's own repeats differ by about this in the recorded runs (5 % where they are quiet).
OBSERVATION_SPREAD = 0.04
# Half-width of 90 % of a normal error, in standard deviations.
NORMAL_90 = 1.645
# No prediction of a step is claimed to be better than this.
LEAST_MODEL_ERROR = 0.05
# Nor a ratio of two plans better than this: repeats of whole calls differ by up to 5 %, no engine
# was started twice, and the scored ratios of the arm that calibrates nothing miss by up to 6 %.
LEAST_GAIN_ERROR = 0.06

_NAMES = tuple(
    name
    for name in Calibration.__struct_fields__
    if name not in ("model_error", "gain_error", "unseen", "learned", "seen", "record_ids")
)


def calibrate(
    prior: Calibration,
    runs: tuple[EngineRun, ...],
    shapes: Mapping[str, ModelShape],
    book: CurveBook,
    rules: SchedulerRules,
    *,
    record_ids: tuple[str, ...] = (),
) -> Calibration:
    """The prior moved to explain `runs`; model_error is what remains. Without runs: the prior."""
    if not runs:
        return prior
    engines = {name: Engine(shape, book, rules, prior) for name, shape in shapes.items()}
    points = [(run, engines[run.spec.model]) for run in runs]
    start = [math.log(getattr(prior, name).value) for name in _NAMES]
    spreads = [_spread(getattr(prior, name)) for name in _NAMES]

    def residuals(logs: list[float]) -> list[float]:
        moved = _moved(prior, logs)
        misses = [miss for run, engine in points for miss in _misses(engine, moved, run)]
        pulls = [
            (log - first) / spread for log, first, spread in zip(logs, start, spreads, strict=True)
        ]
        return [miss / OBSERVATION_SPREAD for miss in misses] + pulls

    logs, widths = _least_squares(residuals, start)
    rest = [miss for run, engine in points for miss in _misses(engine, _moved(prior, logs), run)]
    error = NORMAL_90 * math.sqrt(sum(miss * miss for miss in rest) / len(rest))
    gain = max(LEAST_GAIN_ERROR, NORMAL_90 * _gain_miss(points, _moved(prior, logs)))
    return msgspec.structs.replace(
        _calibrated(prior, logs, widths, record_ids),
        model_error=max(LEAST_MODEL_ERROR, error),
        gain_error=gain if math.isfinite(gain) else prior.gain_error,
        seen=_seen(runs, shapes, prior.seen),
    )


def _seen(
    runs: tuple[EngineRun, ...], shapes: Mapping[str, ModelShape], before: Seen | None
) -> Seen:
    """What the runs cover, and what those covered that the prior was carried from."""
    sizes = [rank_work(shapes[run.spec.model], split_of(run.spec), 0).matrix_bytes for run in runs]
    lengths = [run.spec.prompt_tokens + run.spec.output_tokens for run in runs]
    if before is not None:
        sizes += [before.least_bytes, before.most_bytes]
        lengths.append(before.longest_tokens)
    return Seen(
        least_bytes=min(sizes),
        most_bytes=max(sizes),
        longest_tokens=max(lengths),
        # The model error is that of these runs alone: others' splits are not in it.
        splits=any(run.spec.arm is not None for run in runs),
    )


def split_of(spec: RunSpec) -> Split:
    """The split that a run's degrees mean."""
    return Split(tp=spec.tp, pp=spec.pp, ep=spec.tp if spec.expert_parallel else 1)


def load_of(spec: RunSpec) -> Load:
    """The load of a run."""
    return Load(
        prompt_tokens=spec.prompt_tokens,
        output_tokens=spec.output_tokens,
        concurrency=spec.batch,
    )


def predict_run(engine: Engine, spec: RunSpec) -> tuple[float, float | None]:
    """Seconds of the prefill call and of one further token, as a runs file defines them."""
    plan = plan_on(engine.book.machine, split_of(spec), spec.arm)
    load = load_of(spec)
    first = msgspec.structs.replace(load, output_tokens=1)
    prefill_s = call_cost(engine, plan, first).seconds
    if spec.output_tokens < 2:
        return prefill_s, None
    total_s = call_cost(engine, plan, load).seconds
    return prefill_s, (total_s - prefill_s) / (spec.output_tokens - 1)


def _misses(engine: Engine, constants: Calibration, run: EngineRun) -> list[float]:
    """Relative misses of one run; the median is the middle element of the sorted repeats."""
    engine.calibration = constants
    prefill_s, token_s = predict_run(engine, run.spec)
    measured = run.times.prefill_s[len(run.times.prefill_s) // 2]
    misses = [math.log(prefill_s / measured)]
    if token_s is not None and run.times.total_s:
        total = run.times.total_s[len(run.times.total_s) // 2]
        measured_token = (total - measured) / (run.spec.output_tokens - 1)
        if measured_token > 0 and token_s > 0:
            misses.append(math.log(token_s / measured_token))
    return misses


def _gain_miss(points: list[tuple[EngineRun, Engine]], constants: Calibration) -> float:
    """Root mean square miss of the gain of a split over one GPU, for whole calls in every arm."""
    misses: dict[tuple[str, Load], list[tuple[Split, float]]] = {}
    for run, engine in points:
        engine.calibration = constants
        prefill_s, token_s = predict_run(engine, run.spec)
        times = run.times.total_s or run.times.prefill_s
        total_s = prefill_s + (token_s or 0.0) * (run.spec.output_tokens - 1)
        miss = math.log(total_s / times[len(times) // 2])
        found = misses.setdefault((run.spec.model, load_of(run.spec)), [])
        found.append((split_of(run.spec), miss))
    apart = [
        miss - single
        for found in misses.values()
        for split, miss in found
        for one, single in found
        if split != Split() and one == Split()
    ]
    return math.sqrt(sum(miss * miss for miss in apart) / len(apart)) if apart else math.inf


def _spread(constant: Constant) -> float:
    return math.log(constant.estimate.high / constant.estimate.low) / 2 / NORMAL_90


def _moved(prior: Calibration, logs: list[float]) -> Calibration:
    changes = {}
    for name, log in zip(_NAMES, logs, strict=True):
        constant: Constant = getattr(prior, name)
        value = math.exp(log)
        ratio = value / constant.value
        changes[name] = msgspec.structs.replace(
            constant,
            estimate=Estimate(
                value=value,
                low=constant.estimate.low * ratio,
                high=constant.estimate.high * ratio,
            ),
        )
    return msgspec.structs.replace(prior, **changes)


def _calibrated(
    prior: Calibration,
    logs: list[float],
    widths: list[float],
    record_ids: tuple[str, ...],
) -> Calibration:
    changes = {}
    for name, log, width in zip(_NAMES, logs, widths, strict=True):
        constant: Constant = getattr(prior, name)
        told = width < 0.9 * _spread(constant)
        value = math.exp(log)
        half = math.exp(NORMAL_90 * width)
        changes[name] = Constant(
            estimate=Estimate(value=value, low=value / half, high=value * half),
            provenance=Provenance.CALIBRATED if told else constant.provenance,
            basis="calibrated from engine runs" if told else constant.basis,
        )
    return msgspec.structs.replace(prior, **changes, record_ids=record_ids)


def _least_squares(
    residuals: Callable[[list[float]], list[float]], start: list[float]
) -> tuple[list[float], list[float]]:
    """Gauss-Newton with halved steps; the values and their standard deviations."""
    logs, current = list(start), residuals(start)
    for _ in range(ITERATIONS):
        columns = _jacobian(residuals, logs, current)
        step = _solve(_normal(columns), [-_dot(column, current) for column in columns])
        for share in (1.0, 0.5, 0.25, 0.1):
            trial = [log + share * move for log, move in zip(logs, step, strict=True)]
            found = residuals(trial)
            if _dot(found, found) < _dot(current, current):
                break
        else:
            break
        gained = _dot(current, current) - _dot(found, found)
        logs, current = trial, found
        if gained < 1e-6 * _dot(current, current):
            break
    normal = _normal(_jacobian(residuals, logs, current))
    size = len(logs)
    widths = [
        math.sqrt(_solve(normal, [1.0 if row == one else 0.0 for row in range(size)])[one])
        for one in range(size)
    ]
    return logs, widths


def _jacobian(
    residuals: Callable[[list[float]], list[float]], logs: list[float], current: list[float]
) -> list[list[float]]:
    columns = []
    for index in range(len(logs)):
        moved = list(logs)
        moved[index] += DIFFERENCE
        found = residuals(moved)
        columns.append([(a - b) / DIFFERENCE for a, b in zip(found, current, strict=True)])
    return columns


def _normal(columns: list[list[float]]) -> list[list[float]]:
    return [[_dot(one, other) for other in columns] for one in columns]


def _dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination with pivoting; the pulls of the priors keep the matrix regular."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(rows[row][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for row in range(column + 1, size):
            factor = rows[row][column] / rows[column][column]
            for index in range(column, size + 1):
                rows[row][index] -= factor * rows[column][index]
    answer = [0.0] * size
    for row in reversed(range(size)):
        known = sum(rows[row][index] * answer[index] for index in range(row + 1, size))
        answer[row] = (rows[row][size] - known) / rows[row][row]
    return answer
