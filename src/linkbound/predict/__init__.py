"""Plans under a load as times: step by step, term by term, each with interval and source."""

from linkbound.predict.book import CurveBook
from linkbound.predict.calibrate import calibrate
from linkbound.predict.calibration import Calibration, Constant
from linkbound.predict.candidates import excluded_gpus
from linkbound.predict.forecast import forecast, plan_on
from linkbound.predict.points import predict_specs
from linkbound.predict.pricing import NoForecast
from linkbound.predict.regimes import regime_map
from linkbound.predict.schedule import Step, schedule
from linkbound.predict.score import score
from linkbound.predict.score_types import Score
from linkbound.predict.stated import StatedBook
from linkbound.predict.steptime import Engine, step_time
from linkbound.predict.types import (
    Estimate,
    Forecast,
    Plan,
    Regime,
    RegimeCell,
    StepTime,
    Term,
    TermKind,
)

__all__ = [
    "Calibration",
    "Constant",
    "CurveBook",
    "Engine",
    "Estimate",
    "Forecast",
    "NoForecast",
    "Plan",
    "Regime",
    "RegimeCell",
    "Score",
    "StatedBook",
    "Step",
    "StepTime",
    "Term",
    "TermKind",
    "calibrate",
    "excluded_gpus",
    "forecast",
    "plan_on",
    "predict_specs",
    "regime_map",
    "schedule",
    "score",
    "step_time",
]
