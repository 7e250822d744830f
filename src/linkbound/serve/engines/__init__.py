"""The engines that can be loaded: this list is all there is."""

from collections.abc import Mapping

from linkbound.serve.engines import (
    external,
    llama_cpp,
    sglang,
    tensorrt_llm,
    transformers,
    transformers_offline,
    vllm,
    vllm_offline,
)
from linkbound.serve.engines.types import Engine

ENGINES: Mapping[str, Engine] = {
    engine.name: engine
    for engine in (
        external.ENGINE,
        llama_cpp.ENGINE,
        llama_cpp.IN_PYTHON,
        vllm.ENGINE,
        vllm_offline.ENGINE,
        sglang.ENGINE,
        transformers.ENGINE,
        transformers_offline.ENGINE,
        tensorrt_llm.ENGINE,
    )
}

__all__ = ["ENGINES", "Engine"]
