"""Stands where vLLM would: the child imports it, builds an LLM and gives it batches.

The model's folder says what it does: `good`, `dies-at-once`, `dies-later`, `hangs`, `falls-short`,
`ignores-arm`; any other name is good too.
"""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

__version__ = "0.24.0"
# Enough for the fixed prompt and some batches; the batch after them is too many.
CALLS_BEFORE_DEATH = 10


class SamplingParams(SimpleNamespace):
    pass


class LLM:
    def __init__(self, **arguments):
        self.model = Path(arguments["model"])
        self.fault = json.loads((self.model / "config.json").read_text()).get("fault", "good")
        self.calls = 0
        if self.fault == "dies-at-once":
            raise RuntimeError("CUDA out of memory")
        self._speak(arguments)

    def _speak(self, arguments):
        """Its own log, and NCCL's in the arm's path but for `ignores-arm`."""
        own = not arguments.get("disable_custom_all_reduce", False)
        print("INFO [core.py:114] Initializing a V1 LLM engine (v0.24.0) with config: ...")
        if arguments["tensor_parallel_size"] > 1:
            names = "['CUSTOM', 'PYNCCL']" if own else "['PYNCCL']"
            print(f"Using {names} all-reduce backends (in dispatch order) for group 'tp:0'")
            if own:
                print("Registering 1040 cuda graph addresses", flush=True)
        file = os.environ.get("NCCL_DEBUG_FILE")
        if file is None:
            return
        off = os.environ.get("NCCL_P2P_DISABLE") == "1" and self.fault != "ignores-arm"
        via = "SHM/direct/direct" if off else "P2P/CUMEM"
        lines = ["h:1:1 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1"] * off + [
            f"h:1:1 [{src}] NCCL INFO Channel 00/0 : {src}[{src}] -> {dst}[{dst}] via {via}"
            for src, dst in ((0, 1), (1, 0))
        ]
        Path(file.replace("%h", "h").replace("%p", "1")).write_text("\n".join(lines) + "\n")

    def generate(self, prompts, parameters, use_tqdm):
        assert use_tqdm is False
        assert (parameters.temperature, parameters.ignore_eos) == (0.0, True)
        assert parameters.detokenize is False
        self.calls += 1
        if self.fault == "dies-later" and self.calls > CALLS_BEFORE_DEATH:
            raise RuntimeError("EngineCore encountered an issue")
        if self.fault == "hangs" and len(prompts) > 1:
            time.sleep(3600)
        count = parameters.max_tokens
        if self.fault == "falls-short" and len(prompts) > 1:
            count -= 1
        with (self.model / "calls.jsonl").open("a") as calls:
            asked = [one["prompt_token_ids"] for one in prompts]
            calls.write(json.dumps({"tokens": parameters.max_tokens, "prompts": asked}) + "\n")
        return [self._answer(count, getattr(parameters, "logprobs", None)) for _ in prompts]

    def _answer(self, count, top):
        ids = [7 + number for number in range(count)]
        lists = None
        if top:
            lists = [
                {one: SimpleNamespace(logprob=-0.5), one + 1: SimpleNamespace(logprob=-1.5)}
                for one in ids
            ]
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=ids, logprobs=lists)])
