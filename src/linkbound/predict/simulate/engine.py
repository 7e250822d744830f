"""One engine on one pipeline stage: steps follow one another, equal decode steps as one run.

Between two changes of the batch every decode step has the same sequences and reads as many more
tokens as there are sequences: the time of a run is a sum in closed form, and where in it the next
request comes is the root of a square equation.

A step that is formed while the one before runs is launched meanwhile too: its device waits for the
host only for what is then left of the launch (vLLM, `EngineCore.step_with_batch_queue`).
"""

import math
from collections import deque

from linkbound.predict.simulate.batching import Batching, Cache
from linkbound.predict.simulate.group import Group, enter
from linkbound.predict.simulate.noise import Noise
from linkbound.predict.simulate.sequence import Sequence
from linkbound.predict.simulate.steptable import Chunks, StepTable, run_seconds, steps_before
from linkbound.predict.simulate.tally import Tally
from linkbound.serve.types import SchedulerRules


class Engine:
    """Requests come in, steps are made, requests end; time only moves on."""

    def __init__(
        self,
        rules: SchedulerRules,
        table: StepTable,
        noise: Noise,
        cache: Cache,
        longest_tokens: int,
        launches: StepTable | None = None,
    ) -> None:
        """`launches` has two times of a step: how long the host launches it, and how much of the
        step the device waits for that where nothing ran before; None: no step waits for the host.
        """
        self.coming: deque[Sequence] = deque()
        """Requests in the order they arrive here."""
        self.tally = Tally()
        self._table = table
        self._launches = launches
        self._noise = noise
        self._group = Group(cache.block_tokens)
        self.batching = Batching(rules, cache, [self._group], longest_tokens)
        self._ahead = rules.steps_ahead > 1
        # How long those who decode have waited for prompts that went alone.
        self._paused_s = 0.0
        # When the next step starts, and when it is decided what it holds.
        self._clock_s = 0.0
        self._formed_s = 0.0
        # When the host was done with launching the last step.
        self._launched_s = 0.0

    @property
    def next_s(self) -> float:
        """When the next step is formed; infinite where nothing is left to do."""
        if self._group.size or self.batching.waiting or self.batching.prefilling:
            return self._formed_s
        return max(self._formed_s, self.coming[0].arrived_s) if self.coming else math.inf

    def advance(self, until_s: float) -> list[Sequence]:
        """Make all steps that are formed before `until_s`, up to the first that ends a request."""
        batching, group = self.batching, self._group
        while self.next_s < until_s:
            self._take_in()
            put_back = batching.make_room(group)
            came = [] if put_back else batching.take_cached(group)
            chunks, prompts = batching.take(group, start=not put_back)
            if chunks and not batching.mixes:
                done = self._prompts_alone(chunks, prompts)
            elif chunks or came:
                done = self._mixed(chunks, prompts, came)
            elif group.size:
                done = self._run(until_s)
            else:
                self._wait()
                continue
            if done:
                return done
        return []

    def _take_in(self) -> None:
        self.batching.release(self._formed_s)
        coming, waiting = self.coming, self.batching.waiting
        while coming and coming[0].arrived_s <= self._formed_s:
            waiting.append(coming.popleft())

    def _wait(self) -> None:
        """Nothing can be done yet: go on when the last step is over, or when a request comes."""
        if self._formed_s < self._clock_s:
            self._formed_s = self._clock_s
            return
        assert not self.batching.waiting, "a request that never fits was let in"
        self._formed_s = self._clock_s = self.coming[0].arrived_s

    def _mixed(
        self, chunks: Chunks, prompts: list[Sequence], came: list[Sequence]
    ) -> list[Sequence]:
        """One step with prompts, or the first one of sequences that `came` with their cache."""
        group = self._group
        seconds = self._step(chunks, group.size, group.context)
        self.tally.run(1, seconds, seconds, 0, group.context + self.batching.prefill_tokens)
        self._note_gap(seconds)
        done = group.advance(1)
        self.batching.land(prompts)
        done += enter(group, prompts, came, self._clock_s)
        return self._end(done)

    def _prompts_alone(self, chunks: Chunks, prompts: list[Sequence]) -> list[Sequence]:
        """One step of prompts while those who decode wait."""
        group = self._group
        seconds = self._step(chunks, 0, 0)
        self.tally.run(1, seconds, seconds, 0, group.context + self.batching.prefill_tokens)
        if group.size:
            self._paused_s += seconds
        self.batching.land(prompts)
        return self._end(enter(group, prompts, [], self._clock_s))

    def _step(self, chunks: Chunks, decodes: int, context: int) -> float:
        """Seconds of one step, which is made."""
        seconds = self._table.seconds(chunks, decodes, context)
        seconds = (seconds - self._launch(chunks, decodes, context)) * self._noise(1)
        start_s = self._clock_s
        self._clock_s += seconds
        self._formed_s = start_s if self._ahead else self._clock_s
        return seconds

    def _launch(self, chunks: Chunks, decodes: int, context: int) -> float:
        """Launch the next step; seconds of its wait for the host that the step before hides."""
        if self._launches is None:
            return 0.0
        launch_s, waits_s = self._launches.stages(chunks, decodes, context)
        begun_s = max(self._formed_s, self._launched_s)
        self._launched_s = begun_s + launch_s
        return min(waits_s, max(0.0, self._clock_s - begun_s))

    def _note_gap(self, seconds: float) -> None:
        if self._group.size:
            self.tally.gap(self._paused_s + seconds, self._group.size)
        self._paused_s = 0.0

    def _run(self, until_s: float) -> list[Sequence]:
        """Decode steps until somebody ends, comes, or the next question is due."""
        group, size = self._group, self._group.size
        if self._paused_s:
            # The first step after a pause has a gap of its own.
            return self._mixed((), [], [])
        low, at_s, slope, high = self._table.line(size, group.context)
        first_s = at_s + slope * (group.context - low)
        growth_s = slope * size
        steps = min(group.steps_left, math.ceil((high - group.context) / size))
        wait_s = self._until_change_s(until_s)
        if wait_s < math.inf:
            steps = min(steps, self._steps_within(first_s, growth_s, wait_s))
        steps = self.batching.steps_with_room(group, steps)
        factor = self._noise(steps)
        if wait_s < math.inf:
            steps = min(steps, self._steps_within(first_s, growth_s, wait_s / factor))
        start_s, last_s = self._clock_s, (first_s + growth_s * (steps - 1)) * factor
        self._clock_s = start_s + run_seconds(first_s, growth_s, steps) * factor
        self._formed_s = self._clock_s
        if self._ahead:
            self._formed_s = start_s + run_seconds(first_s, growth_s, steps - 1) * factor
        self._launch((), size, group.context)
        held = group.context + self.batching.prefill_tokens
        self.tally.run(steps, first_s * factor, last_s, size, held)
        return self._end(group.advance(steps))

    def _until_change_s(self, until_s: float) -> float:
        """Seconds from the start of the run to what may change the batch."""
        if self.batching.waits_for_place:
            return 0.0
        if self.coming:
            until_s = min(until_s, self.coming[0].arrived_s)
        return until_s - self._clock_s

    def _steps_within(self, first_s: float, growth_s: float, wait_s: float) -> int:
        """Steps of a run that are decided before something changes `wait_s` from its start."""
        started = steps_before(first_s, growth_s, wait_s)
        return started + 1 if self._ahead else max(1, started)

    def _end(self, done: list[Sequence]) -> list[Sequence]:
        for one in done:
            one.end_s = self._clock_s
            if self._ahead:
                self.batching.keep_until(one, self._clock_s)
        return done
