"""Transformers' `generate` in a process: `python -m linkbound.serve.transformers_child` (P2).

Whole stages of layers on a GPU each by `device_map`, as `from_pretrained` puts them there. Built
once; then it takes the orders of `orders.py`, and one more: what its stages hand to each other.
"""

import importlib
from collections.abc import Sequence
from typing import Any

import msgspec

from linkbound.errors import MissingExtra
from linkbound.serve.batch_types import Batch, HandOvers
from linkbound.serve.layer_job import LayerJob
from linkbound.serve.orders import completion, prompts_of, take_orders
from linkbound.serve.stage_copies import StageCopies
from linkbound.splits.ranks import stage_bounds
from linkbound.splits.types import Split

_SEED = 1
_NEEDED = ("torch", "transformers", "accelerate")
# Modules of the families in serve/twin.py; "auto" puts the positions' embeddings behind the norm.
_BEFORE = ("model.embed_tokens",)
_AFTER = ("model.norm", "model.rotary_emb", "lm_head")


def main() -> None:
    """Build the model, then take orders until a signal ends the process."""
    engine = Engine()
    more = {"/hand-overs": engine.hand_overs}
    take_orders(engine, "Whole batches through Transformers' generate.", more)


class Engine:
    """What this process holds, once it is built."""

    def build(self, arguments: dict[str, Any]) -> None:
        """Raises MissingExtra where a library is not here, and what Transformers raises."""
        self._torch, transformers = _libraries()
        job = msgspec.convert(arguments, LayerJob)
        self._copies = StageCopies(staged=job.staged)
        config = transformers.AutoConfig.from_pretrained(job.folder)
        split = Split(pp=job.stages, stage_layers=job.stage_layers)
        bounds = stage_bounds(split, config.num_hidden_layers)
        places = list(range(job.stages)) if self._torch.cuda.is_available() else ["cpu"]
        # Alike in every arm: the same model answers. Missing weights are drawn where they lie.
        self._torch.manual_seed(_SEED)
        kind: Any = transformers.AutoModelForCausalLM
        if job.dummy_weights:
            kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        self._model: Any = kind.from_pretrained(
            None if job.dummy_weights else job.folder,
            config=config,
            state_dict={} if job.dummy_weights else None,
            dtype=config.dtype or self._torch.bfloat16,
            device_map=device_map(bounds, places),
            **job.arguments,
        )
        # No end before the length that is asked, and none of the model's own ways to sample.
        self._model.generation_config = transformers.GenerationConfig(pad_token_id=0)

    def call(self, prompts: list[list[int]], output_tokens: int) -> Sequence[Sequence[int]]:
        """All prompts at once, greedily, to exactly so many tokens each."""
        answers: list[list[int]] = self._generate(prompts, output_tokens).tolist()
        return [ids[len(prompts[0]) :] for ids in answers]

    def _generate(self, prompts: list[list[int]], output_tokens: int, **more: Any) -> Any:
        given = self._torch.tensor(prompts, device=self._model.device)
        return self._model.generate(
            given,
            attention_mask=self._torch.ones_like(given),
            max_new_tokens=output_tokens,
            do_sample=False,
            **more,
        )

    def complete(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The fixed prompt, in the form of an OpenAI completion."""
        prompt, top = asked["prompt"], asked["logprobs"]
        found = self._generate(
            [prompt], asked["max_tokens"], return_dict_in_generate=True, output_logits=True
        )
        ids: list[int] = found.sequences[0].tolist()[len(prompt) :]
        likely = []
        for one, logits in zip(ids, found.logits, strict=True):
            scores = self._torch.log_softmax(logits[0].float(), -1)
            values, tokens = scores.topk(top)
            listed = zip(tokens.tolist(), values.tolist(), strict=True)
            likely.append({one: float(scores[one]), **dict(listed)})
        return completion(ids, likely)

    def hand_overs(self, asked: Batch) -> HandOvers:
        """What a step with the prompts and one with a token each copy, and the time of that."""
        prompts = prompts_of(asked, 0)
        with self._copies.counted() as first:
            self.call(prompts, 1)
        with self._copies.counted() as both:
            self.call(prompts, 2)
        return HandOvers(
            prefill=self._copies.timed(first), token=self._copies.timed(both[len(first) :])
        )


def device_map(
    bounds: Sequence[tuple[int, int]], places: Sequence[int | str]
) -> dict[str, int | str]:
    """Where every module goes; one place is the whole model's."""
    first, last = places[0], places[-1]
    if first == last:
        return {"": first}
    found = dict.fromkeys(_BEFORE, first)
    for place, (start, end) in zip(places, bounds, strict=True):
        found |= {f"model.layers.{layer}": place for layer in range(start, end)}
    return {**found, **dict.fromkeys(_AFTER, last)}


def _libraries() -> tuple[Any, Any]:
    try:
        torch, transformers, _ = (importlib.import_module(name) for name in _NEEDED)
    except ImportError as error:
        raise MissingExtra(
            f"{error.name} cannot be imported ({error}).",
            why="Batches go through Transformers, its stages through accelerate.",
            hint="Name an interpreter that has them with --program, or put them on PYTHONPATH.",
        ) from error
    return torch, transformers


if __name__ == "__main__":
    main()
