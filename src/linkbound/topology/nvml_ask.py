"""Asking NVML one fact at a time, through one seam that a fake can take the place of (M1 M2)."""

from typing import Any, Protocol

_VALUE_NAMES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of nvmlValue_t in the order of nvmlValueType_t."""


class NvmlRefused(Exception):
    """NVML has no answer: the function and the library's reason."""

    def __init__(self, function: str, reason: str) -> None:
        super().__init__(f"{function}: {reason}")
        self.function = function
        self.reason = reason


class Nvml(Protocol):
    """The one way in which this module asks NVML."""

    def ask(self, function: str, *arguments: Any) -> Any:
        """The answer of an NVML function, by its name in nvml.h. Raises NvmlRefused."""


class Asker:
    """Asks for facts and keeps what was refused, grouped by reason."""

    def __init__(self, nvml: Nvml) -> None:
        self.nvml = nvml
        self.refused: dict[str, list[str]] = {}

    def fact(self, about: str, function: str, *arguments: Any) -> Any:
        """The answer, or None with a note."""
        try:
            return self.nvml.ask(function, *arguments)
        except NvmlRefused as refusal:
            self.note(str(refusal), about)
            return None

    def note(self, refusal: str, about: str) -> None:
        """Keeps a refusal that the caller met itself."""
        self.refused.setdefault(refusal, []).append(about)

    def notes(self) -> tuple[str, ...]:
        """One sentence a refusal, with all that it concerned."""
        return tuple(
            f"NVML, {refusal} ({', '.join(dict.fromkeys(about))}): left unknown."
            for refusal, about in self.refused.items()
        )


def field_number(answer: Any) -> float | None:
    """The number in one answer of nvmlDeviceGetFieldValues; None where the field was refused."""
    if answer.nvmlReturn != 0 or not 0 <= answer.valueType < len(_VALUE_NAMES):
        return None
    number: float = getattr(answer.value, _VALUE_NAMES[answer.valueType])
    return number
