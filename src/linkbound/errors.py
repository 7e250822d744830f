"""Every error a user can meet, with its exit code.

LinkboundError            1    ran and failed: no usable result for what was asked
├── UsageError            2    the command line or a setting is wrong
├── InputError            2    a file is not what it was taken for
│   └── ModelRefused      2    a model has keys whose meaning for the cache is unknown
├── MissingExtra          2    a part of the package is not installed
├── NothingToMeasure      3    no driver, too few GPUs, too little memory
├── CorruptionFound       4    wrong bytes or a hang were found (L6)
├── StudyError            1    the study file cannot be used
├── TimeLimit           124    a time limit was reached
└── Interrupted         130    the user stopped it
"""


class LinkboundError(Exception):
    """What was seen, why it matters, what to do: three short sentences."""

    exit_code = 1

    def __init__(self, seen: str, *, why: str = "", hint: str = "") -> None:
        super().__init__(seen)
        self.seen = seen
        self.why = why
        self.hint = hint

    def __str__(self) -> str:
        return " ".join(part for part in (self.seen, self.why, self.hint) if part)


class UsageError(LinkboundError):
    """The command line or a setting is wrong."""

    exit_code = 2


class InputError(LinkboundError):
    """A file is not what it was taken for."""

    exit_code = 2


class ModelRefused(InputError):
    """A model's file has keys that change the cache or the weights in a way not understood."""

    def __init__(self, seen: str, *, keys: tuple[str, ...], why: str = "", hint: str = "") -> None:
        super().__init__(seen, why=why, hint=hint)
        self.keys = keys


class MissingExtra(LinkboundError):
    """A part of the package is not installed; the hint names the extra."""

    exit_code = 2


class NothingToMeasure(LinkboundError):
    """No driver, too few GPUs or too little memory for what was asked."""

    exit_code = 3


class CorruptionFound(LinkboundError):
    """Wrong bytes or a hang were found; everything measured was written before this is raised."""

    exit_code = 4


class StudyError(LinkboundError):
    """The study file cannot be used: foreign, newer, edited or damaged."""


class TimeLimit(LinkboundError):
    """A time limit was reached."""

    exit_code = 124


class Interrupted(LinkboundError):
    """The user stopped the program; the hint says what is kept."""

    exit_code = 130
