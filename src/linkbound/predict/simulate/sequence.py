"""One request on its way through engines."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from linkbound.predict.simulate.group import Group


class Sequence:
    """What an engine knows of one request; mutable, as thousands of steps change it."""

    __slots__ = (
        "arrived_s",
        "cached",
        "due_s",
        "end_s",
        "finish_step",
        "first_s",
        "generated",
        "group",
        "index",
        "output",
        "prompt",
        "todo",
    )

    def __init__(
        self, index: int, due_s: float, prompt: int, output: int, *, cached: int = 0
    ) -> None:
        """`cached` tokens of the prompt are in the prefix cache: they need no prefill."""
        self.index = index
        self.due_s = due_s
        self.arrived_s = due_s
        """When it reached the engine that it is in."""
        self.prompt = prompt
        self.output = output
        self.cached = cached
        self.generated = 0
        """Tokens produced when it last joined or left a group."""
        self.todo = prompt - cached
        """Tokens still to prefill: those of a preempted sequence come again."""
        self.group: Group | None = None
        """The group that it decodes in."""
        self.finish_step = -1
        """Number of the group's step that produces its last token."""
        self.first_s: float | None = None
        self.end_s: float | None = None

    @property
    def tokens(self) -> int:
        """Prompt and what was generated: what a prefill from the start must compute."""
        return self.prompt + self.generated

    def put_back(self) -> None:
        """Preempted: its cache is gone, all that is not in the prefix cache comes again."""
        self.todo = self.tokens - self.cached
