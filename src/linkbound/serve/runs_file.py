"""Measured batches as a runs file: what `runs.py` reads, and other programs can (E2)."""

import json
from collections.abc import Iterable
from typing import Any

from linkbound.serve.types import EngineRun


def runs_lines(runs: Iterable[EngineRun]) -> str:
    """One JSON object a line, with the fields of recorded/h200-pair/vllm-0.24.0, and the engine."""
    return "".join(json.dumps(_fields(run)) + "\n" for run in runs)


def _fields(run: EngineRun) -> dict[str, Any]:
    spec, prefill, total = run.spec, run.times.prefill_s, run.times.total_s
    prefill_s = prefill[len(prefill) // 2]
    fields: dict[str, Any] = {
        "tag": run.tag,
        "engine": spec.engine,
        "model": spec.model,
        "tp": spec.tp,
        "pp": spec.pp,
        "ep": int(spec.expert_parallel),
        "custom_ar": int(spec.custom_all_reduce),
        "p2p_disable": str(int(spec.p2p_disabled)),
        "batch": spec.batch,
        "input": spec.prompt_tokens,
        "output": spec.output_tokens,
        "prefill_s": prefill_s,
        "prefill_all": list(prefill),
    }
    if total:
        total_s = total[len(total) // 2]
        fields |= {
            "total_s": total_s,
            "total_all": list(total),
            "tpot_ms": (total_s - prefill_s) / (spec.output_tokens - 1) * 1e3,
            "tok_s": spec.batch * spec.output_tokens / total_s,
        }
    if run.started is not None:
        fields["started"] = run.started
    return fields
