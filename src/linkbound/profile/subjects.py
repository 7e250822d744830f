"""What names a measured point among the others, and whether a record is of a model (E2, P1)."""

from collections.abc import Mapping
from typing import Any

from linkbound.model.derive import shape_key
from linkbound.model.types import ModelShape
from linkbound.profile.types import Job, Point


def model_of(shape: ModelShape) -> dict[str, str]:
    """The model in a subject: one name can have other layers or weights of fewer bits."""
    return {"model": shape.name, "shape": shape_key(shape)}


def subject_of(job: Job, point: Point, repeat: int) -> dict[str, Any]:
    """What names a run among the others."""
    return {
        **model_of(job.shape),
        "split": job.split.name,
        "dispatch": job.split.dispatch.value if job.split.ep > 1 else None,
        "arm": None if job.arm is None else job.arm.value,
        "device": job.device.value,
        "phase": point.phase.value,
        "batch": point.batch,
        "tokens": point.tokens,
        "context": point.context,
        "micro_batches": job.micro_batches,
        "alone": job.alone,
        "delay_s": None if job.delay is None else job.delay.seconds,
        "repeat": repeat,
    }


def is_of(subject: Mapping[str, Any], shape: ModelShape) -> bool:
    """Whether a record of the name was made of this shape.

    Records without the shape's key are from before products of 8-bit floats: all were in bf16.
    """
    if subject["model"] != shape.name:
        return False
    if "shape" in subject:
        return bool(subject["shape"] == shape_key(shape))
    return not any(weights.float8 for weights in shape.all_weights)
