"""Public names of this layer: the study and its records, children, comparison."""

from linkbound.evidence.child import ChildResult, child_environment, run
from linkbound.evidence.compare import StudyComparison, compare_studies, outcome_word
from linkbound.evidence.merge import merge
from linkbound.evidence.study import Study
from linkbound.evidence.types import (
    Derived,
    Failed,
    Figure,
    Finding,
    Fingerprint,
    Level,
    Measured,
    Outcome,
    Predicted,
    Provenance,
    Reason,
    Record,
    Samples,
    Severity,
    Skipped,
    Stated,
    canonical_json,
)

__all__ = [
    "ChildResult",
    "Derived",
    "Failed",
    "Figure",
    "Finding",
    "Fingerprint",
    "Level",
    "Measured",
    "Outcome",
    "Predicted",
    "Provenance",
    "Reason",
    "Record",
    "Samples",
    "Severity",
    "Skipped",
    "Stated",
    "Study",
    "StudyComparison",
    "canonical_json",
    "child_environment",
    "compare_studies",
    "merge",
    "outcome_word",
    "run",
]
