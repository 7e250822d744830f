"""vLLM's `LLM` in a process of its own: `python -m linkbound.serve.vllm_child` (P2).

Built once; then it takes the orders of `orders.py`.
"""

from collections.abc import Sequence
from typing import Any

from linkbound.errors import MissingExtra
from linkbound.serve.orders import completion, take_orders


def main() -> None:
    """Build the engine, then take orders until a signal ends the process."""
    take_orders(Engine(), "Whole batches through vLLM's LLM.")


class Engine:
    """What this process holds, once it is built."""

    def build(self, arguments: dict[str, Any]) -> None:
        """Raises MissingExtra where vLLM is not here, and what vLLM raises."""
        try:
            import vllm
        except ImportError as error:
            raise MissingExtra(
                f"vLLM cannot be imported ({error}).",
                why="Batches go through it.",
                hint="Name an interpreter that has it with --program, or put it on PYTHONPATH.",
            ) from error
        self._vllm: Any = vllm
        self._llm: Any = vllm.LLM(**arguments)

    def call(self, prompts: list[list[int]], output_tokens: int) -> Sequence[Sequence[int]]:
        """All prompts at once, at temperature 0, to exactly so many tokens each."""
        outputs = self._generate(prompts, output_tokens)
        return [one.outputs[0].token_ids for one in outputs]

    def _generate(self, prompts: list[list[int]], output_tokens: int, **more: Any) -> list[Any]:
        parameters = self._vllm.SamplingParams(
            temperature=0.0,
            ignore_eos=True,
            max_tokens=output_tokens,
            detokenize=False,
            **more,
        )
        given = [{"prompt_token_ids": ids} for ids in prompts]
        return list(self._llm.generate(given, parameters, use_tqdm=False))

    def complete(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The fixed prompt, in the form of an OpenAI completion."""
        top = asked.get("logprobs")
        (request,) = self._generate([asked["prompt"]], asked["max_tokens"], logprobs=top)
        (output,) = request.outputs
        likely = [
            {other: value.logprob for other, value in found.items()}
            for found in output.logprobs or []
        ]
        return completion(list(output.token_ids), likely)


if __name__ == "__main__":
    main()
