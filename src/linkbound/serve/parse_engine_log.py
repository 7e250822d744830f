"""What an engine says of its own ways to reduce: vLLM, SGLang, llama.cpp, TensorRT-LLM (P3).

Progress bars end in carriage returns and share lines with records: lines are split on both, and
patterns are searched, never anchored.
"""

import re

from linkbound.errors import InputError
from linkbound.serve.path_types import EngineLog, OwnReduce

MAX_LOG_BYTES = 64 * 1024 * 1024
# Longer than any line of use: vLLM prints its whole configuration in some 6,000 characters.
_LONGEST_LINE = 16_384
_BREAKS = re.compile(r"[\r\n]+")
_SIGNS = (
    ("vllm", re.compile(r"vLLM is using nccl==|V1 LLM engine|\(EngineCore|vLLM API server|"
                        r"all-reduce backends \(in dispatch order\)|\(Worker(?:_TP\d+)? pid=")),
    ("sglang", re.compile(r"sglang is using nccl==|The server is fired up|server_args=ServerArgs|"
                          r"All Reduce config: symmetric_memory")),
    ("llama.cpp", re.compile(r"ggml_cuda_init|ggml_backend_cuda|llama_model_load|llama_context|"
                             r"srv +(?:load_model|init|log_server_r)|slot +(?:print_timing|release|"
                             r"launch_slot)|AllReduce pipeline: \d+ GPUs|internal AllReduce|"
                             r"unknown GGML_CUDA_ALLREDUCE")),
    ("tensorrt-llm", re.compile(r"\[TRT-LLM\]|\[TensorRT-LLM\]|P2P not supported between local")),
)  # fmt: skip
_BACKENDS = re.compile(
    r"Using \[([^\]]{0,400})\] all-reduce backends \(in dispatch order\) for group '([^']{1,40})'"
)
_DISABLED = re.compile(
    r"Custom ?allreduce is disabled because (.{1,200}?)(?:\. To silence|\.?$)", re.IGNORECASE
)
_WORLD_UNSUPPORTED = re.compile(
    r"Custom allreduce is disabled due to an unsupported world size: (\d{1,5})"
)
_REGISTERED = re.compile(r"Registering (\d{1,9}) cuda graph addresses")
_NCCL = re.compile(r"(?:vLLM|sglang) is using nccl==([\w.+-]{1,30})")
_VERSION = re.compile(
    r"(?:LLM engine|vLLM API server version|version) \(?v?(\d+\.\d+[\w.+-]{0,20})"
)
_WORLD = re.compile(r"world_size=(\d{1,5})|in world size (\d{1,5}) is assigned")
_SGLANG_V2 = re.compile(r"All Reduce config: symmetric_memory = .{1,80}multicast = (True|False)")
_SGLANG_FAILED = re.compile(r"Setup Custom allreduce failed with (.{1,160})")
_NO_MULTICAST = re.compile(r"multicast operations are not supported")
_LLAMA_INTERNAL = re.compile(r"initialized AllReduce pipeline: (\d{1,3}) GPUs")
_LLAMA_DEVICES = re.compile(r"found (\d{1,3}) CUDA devices")
_LLAMA_OFF = re.compile(
    r"(NCCL not compiled in; falling back to internal AllReduce|NCCL init failed.{0,80}|"
    r"NCCL disabled: virtual devices in use|internal AllReduce init failed.{0,60}|"
    r"unknown GGML_CUDA_ALLREDUCE value.{0,60})"
)
_TRT_REFUSED = re.compile(r"P2P not supported between local devices \S{1,12} and \S{1,12}")
_FACTS = (
    ("model_memory", re.compile(r"Model loading took ([\d.]{1,12} GiB)")),
    ("kv_memory", re.compile(r"Available KV cache memory: ([\d.]{1,12} GiB)")),
    ("kv_tokens", re.compile(r"GPU KV cache size: ([\d,]{1,20}) tokens")),
    ("graph_memory", re.compile(r"Graph capturing finished in .{1,20} took ([\d.]{1,12} GiB)")),
    ("graph_sizes", re.compile(r"'cudagraph_capture_sizes': \[([\d, ]{1,4000})\]")),
    ("start_up_s", re.compile(r"init engine \(.{1,80}\) took ([\d.]{1,12}) s")),
    ("pipeline_parallelism", re.compile(r"(pipeline parallelism enabled)")),
)
# All ways of vLLM but these three move data from GPU to GPU without NCCL's choice of transport.
_THROUGH_NCCL = frozenset({"PYNCCL", "NCCL", "TORCH_DISTRIBUTED"})


class _Found:
    """What has been read so far."""

    def __init__(self) -> None:
        self.engine: str | None = None
        self.version: str | None = None
        self.nccl: str | None = None
        self.world: int | None = None
        self.backends: dict[str, tuple[str, ...]] = {}
        self.registered = 0
        self.disabled: dict[str, None] = {}
        self.live: str | None = None
        self.multicast: bool | None = None
        self.facts: dict[str, str] = {}

    def read(self, line: str) -> None:
        if self.engine is None:
            self.engine = next((name for name, sign in _SIGNS if sign.search(line)), None)
        if found := _BACKENDS.search(line):
            names = tuple(part.strip(" '\"") for part in found[1].split(","))
            self.backends[found[2]] = tuple(name for name in names if name)
        if found := _REGISTERED.search(line):
            self.registered = max(self.registered, int(found[1]))
        if found := _DISABLED.search(line):
            self.disabled[found[1].strip(" .")] = None
        if found := _WORLD_UNSUPPORTED.search(line):
            self.disabled[f"of an unsupported world size: {found[1]}"] = None
        self._read_identity(line)
        self._read_other_engines(line)
        for name, pattern in _FACTS:
            if name not in self.facts and (found := pattern.search(line)):
                self.facts[name] = found[1]

    def _read_identity(self, line: str) -> None:
        if self.nccl is None and (found := _NCCL.search(line)):
            self.nccl = found[1]
        if self.version is None and (found := _VERSION.search(line)):
            self.version = found[1]
        if found := _WORLD.search(line):
            self.world = max(self.world or 0, int(found[1] or found[2]))
        if _NO_MULTICAST.search(line):
            self.multicast = bool(self.multicast)

    def _read_other_engines(self, line: str) -> None:
        if found := _SGLANG_V2.search(line):
            self.live = f"its second custom all-reduce is set up (multicast {found[1]})"
            self.multicast = found[1] == "True" or bool(self.multicast)
        if found := _SGLANG_FAILED.search(line):
            self.disabled[f"its set-up failed: {found[1].strip()}"] = None
        if found := _LLAMA_INTERNAL.search(line):
            self.facts["internal_all_reduce"] = f"{found[1]} GPUs, through pinned host memory"
        if found := _LLAMA_DEVICES.search(line):
            self.world = int(found[1])
        if found := _LLAMA_OFF.search(line):
            self.disabled[found[1].strip()] = None
        if found := _TRT_REFUSED.search(line):
            self.disabled[found[0]] = None


def parse_engine_log(text: str, source: str) -> EngineLog:
    """What `text` says of the engine's ways. Raises InputError where no engine is recognised."""
    if len(text) > MAX_LOG_BYTES:
        raise InputError(
            f"{source} has {len(text):,} characters.",
            why="An engine's log is a few megabytes; this is something else.",
            hint="Cut it to the start of the engine, up to its first requests.",
        )
    found = _Found()
    for line in _BREAKS.split(text):
        found.read(line[:_LONGEST_LINE])
    if found.engine is None:
        raise InputError(
            f"{source}: no line of vLLM, SGLang, llama.cpp or TensorRT-LLM was found.",
            why="An engine is known by the lines it prints while it starts.",
            hint="Give the engine's whole output, from its start on.",
        )
    own, why = _own_reduce(found)
    return EngineLog(
        source=source,
        engine=found.engine,
        version=found.version,
        nccl_version=found.nccl,
        world_size=found.world,
        backends=found.backends,
        own_reduce=own,
        own_reduce_why=why,
        disabled_because=tuple(found.disabled),
        multicast=found.multicast,
        facts=found.facts,
    )


def _own_reduce(found: _Found) -> tuple[OwnReduce, str]:
    if found.registered:
        return (
            OwnReduce.LIVE,
            f"its custom all-reduce registered {found.registered} addresses for CUDA graphs",
        )
    if found.live:
        return OwnReduce.LIVE, found.live
    groups = {group: names for group, names in found.backends.items() if group.startswith("tp")}
    own = [name for names in groups.values() for name in names if name not in _THROUGH_NCCL]
    if own:
        return OwnReduce.LISTED, f"{', '.join(own)} stands before NCCL in its list"
    if groups:
        return OwnReduce.OFF, f"its list of all-reduces is {', '.join(*groups.values())} alone"
    if found.disabled and found.engine in ("vllm", "sglang"):
        return OwnReduce.OFF, f"custom all-reduce is disabled because {next(iter(found.disabled))}"
    return OwnReduce.UNKNOWN, ""
