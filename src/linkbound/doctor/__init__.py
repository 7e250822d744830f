"""Public names of this layer."""

from linkbound.doctor.diagnose import RULES, diagnose, diagnose_live, findings_of
from linkbound.doctor.types import (
    Diagnosis,
    Environment,
    Facts,
    ReadInput,
    Symptom,
    UnreadInput,
)
from linkbound.doctor.vocabulary import vocabulary

__all__ = [
    "RULES",
    "Diagnosis",
    "Environment",
    "Facts",
    "ReadInput",
    "Symptom",
    "UnreadInput",
    "diagnose",
    "diagnose_live",
    "findings_of",
    "vocabulary",
]
