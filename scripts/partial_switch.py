"""A short job of vLLM over GPUs 0 and 1, with NCCL's peer-to-peer off and the engine's own on.

It is started as in arm p2p, but for NCCL_P2P_DISABLE=1, which many take for staging: a run that
`linkbound trace -- python scripts/partial_switch.py` is to call by its name.
"""

import json
import os
import tempfile
from pathlib import Path

from linkbound.links.types import Arm
from linkbound.serve.batch_types import Batch
from linkbound.serve.engines.model_files import configuration
from linkbound.serve.engines.switches import DECIDED, switch_for
from linkbound.serve.engines.types import ServerPlan
from linkbound.serve.engines.vllm import environment
from linkbound.serve.engines.vllm_offline import ARMS, arguments
from linkbound.serve.orders import measure
from linkbound.serve.process import free_port
from linkbound.serve.rules import VLLM
from linkbound.serve.vllm_child import Engine
from linkbound.splits.types import Split

# As wide as Llama-3.1-8B, and short: what crosses a layer is the same, and it starts sooner.
_LAYERS = 4
# Prompts of a step stay below 8 MiB a tensor, so that the engine's own all-reduce takes them too.
_JOB = Batch(batch=8, prompt_tokens=64, output_tokens=257, calls=4)


def main() -> None:
    """Build the engine, run the job, end."""
    with tempfile.TemporaryDirectory(prefix="linkbound-partial-") as folder:
        config = json.loads(configuration("llama-3.1-8b")) | {"num_hidden_layers": _LAYERS}
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        plan = ServerPlan(
            model=folder,
            split=Split(tp=2),
            arm=Arm.P2P,
            devices=(0, 1),
            port=free_port(),
            folder=folder,
            context_tokens=1024,
            sequences=VLLM.max_sequences,
            dummy_weights=True,
            measured=False,
        )
        switch = switch_for("vLLM", ARMS, plan)
        for name in DECIDED:
            os.environ.pop(name, None)
        os.environ.update(environment(plan, switch) | {"NCCL_P2P_DISABLE": "1"})
        engine = Engine()
        engine.build(arguments(plan, switch, folder))
        times = measure(engine, _JOB)
        print(f"{_JOB.name}: {min(times.total_s):.3f} s")


if __name__ == "__main__":
    main()
