"""Whether bytes arrive: the owner of the destination checks every word of it (L6).

The pattern depends on place and seed, and the destination holds its complement before the copy.
"""

from collections.abc import Callable

from linkbound.links.live.bench import Bench
from linkbound.links.live.buffers import Buffers
from linkbound.links.live.cuda import Stream
from linkbound.links.live.tasks import THREADS, Ends, blocks_for
from linkbound.values import Value

WORD_BYTES = 4
_COMPLEMENT = 0xFFFFFFFF
_RESULT_BYTES = 16


class Verdict(Value, frozen=True, kw_only=True):
    """How many words were wrong, and where the first is."""

    wrong: int
    wrong_at_bytes: int | None = None


class Checker:
    """Fills, runs and checks; each check has a seed of its own."""

    def __init__(self, bench: Bench, buffers: Buffers) -> None:
        self._bench = bench
        self._cuda = bench.cuda
        self._buffers = buffers
        self._seed = 0
        self._seeds: dict[tuple[int, int], int] = {}

    def run(self, ends: Ends) -> Verdict:
        """One call of the task, from a fresh pattern into its complement."""
        self.prepare(ends)
        self._bench.run(ends.task)
        return self.check(ends)

    def prepare(self, ends: Ends) -> None:
        """A new pattern at the source and its complement at the destination, kept until checked."""
        self._seed += 1
        self._seeds[ends.src_at, ends.dst_at] = self._seed
        size_bytes = ends.task.size_bytes
        self._fill(ends.src_device, ends.src_at, size_bytes, 0)
        self._fill(ends.dst_device, ends.dst_at, size_bytes, _COMPLEMENT)
        self._cuda.finish(self._bench.stream(ends.src_device))
        self._cuda.finish(self._bench.stream(ends.dst_device))

    def check(self, ends: Ends) -> Verdict:
        """Count the words at the destination that are not the pattern's, on its own GPU."""
        words = ends.task.size_bytes // WORD_BYTES
        blocks = blocks_for(self._bench, ends.dst_device, ends.task.size_bytes)
        seed = self._seeds[ends.src_at, ends.dst_at]
        return self._counted(
            ends.dst_device,
            lambda on, result_at: self._cuda.launch(
                "check", on, blocks, THREADS, ends.dst_at, words, seed, result_at
            ),
        )

    def check_pieces(self, ends: Ends, pieces: int, step: int) -> Verdict:
        """The same after a gather: piece p came from place p x step."""
        words = ends.task.size_bytes // pieces // WORD_BYTES
        blocks = blocks_for(self._bench, ends.dst_device, ends.task.size_bytes)
        seed = self._seeds[ends.src_at, ends.dst_at]
        return self._counted(
            ends.dst_device,
            lambda on, result_at: self._cuda.launch(
                "check_pieces",
                on,
                blocks,
                THREADS,
                ends.dst_at,
                words,
                pieces,
                step,
                seed,
                result_at,
            ),
        )

    def _fill(self, device: int, at: int, size_bytes: int, invert: int) -> None:
        on = self._bench.stream(device)
        blocks = blocks_for(self._bench, device, size_bytes)
        words = size_bytes // WORD_BYTES
        self._cuda.launch("fill", on, blocks, THREADS, at, words, self._seed, invert)

    def _counted(self, device: int, launch: Callable[[Stream, int], None]) -> Verdict:
        on = self._bench.stream(device)
        result_at = self._buffers.device(device, "result", _RESULT_BYTES)
        read_at = self._buffers.pinned(None, f"result {device}", _RESULT_BYTES)
        self._cuda.launch("clear_result", on, 1, 1, result_at)
        launch(on, result_at)
        self._cuda.copy(read_at, result_at, _RESULT_BYTES, on)
        self._cuda.finish(on)
        wrong = self._cuda.read_word(read_at)
        if not wrong:
            return Verdict(wrong=0)
        first = self._cuda.read_word(read_at + 8)
        return Verdict(wrong=wrong, wrong_at_bytes=first * WORD_BYTES)
