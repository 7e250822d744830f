"""A llama.cpp layer split over two processes with one shaped link between them, measured for real.

Runs where LINKBOUND_LLAMA_CPP names a folder with `llama-server` and `ggml-rpc-server` (llama.cpp
built with GGML_RPC=ON; the wheel of xllamacpp has no RPC backend) and namespaces may be made.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from serve_model import write_model
from serve_namespaces import FEW, MANY, PROMPT, WORKERS

LANE = Path(__file__).with_name("serve_namespaces.py")
BITS_PER_S = 20_000_000
WIDTH = 128
STATE_BYTES = PROMPT * WIDTH * 4
"""Hidden state of the prompt, in float32 as llama.cpp hands it from stage to stage."""
MASK_BYTES = PROMPT * PROMPT * 2
"""The attention's mask: an input of every device, so it crosses as well."""
IN_NAMESPACE = ("unshare", "--user", "--map-root-user", "--net")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = os.environ.get("LINKBOUND_LLAMA_CPP")
    if folder is None:
        pytest.skip("LINKBOUND_LLAMA_CPP names no build of llama.cpp with RPC")
    assert any((Path(folder) / name).exists() for name in WORKERS), folder
    for program in ("unshare", "nsenter", "ip", "tc"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    probe = ("ip", "link", "add", "a0", "type", "veth", "peer", "name", "b0")
    tried = subprocess.run([*IN_NAMESPACE, *probe], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip(f"no network namespaces here: {tried.stderr.decode().strip()[:200]}")
    out = tmp_path_factory.mktemp("rpc")
    write_model(out / "model.gguf", width=WIDTH)
    argv = (sys.executable, str(LANE), folder, str(out / "model.gguf"), str(out), str(BITS_PER_S))
    done = subprocess.run([*IN_NAMESPACE, *argv], capture_output=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return json.loads(done.stdout)


def figure(run, name):
    (row,) = run["document"]["rows"]
    assert row["failed"] == 0
    return row["figures"][name]["median"]


def request_bytes(found):
    """Out and in over the link, of one request."""
    pairs = zip(found["open"]["link_bytes"], found["few"]["link_bytes"], strict=True)
    return [(many - few) / (MANY - FEW) for many, few in pairs]


def test_the_prompts_state_and_mask_cross_the_link_once(found):
    out, back = request_bytes(found)
    # Beside them the graph of every step, and a row of the state for each later token.
    assert 1 <= out / (STATE_BYTES + MASK_BYTES) <= 1.25
    assert back < STATE_BYTES


def test_a_slow_link_delays_the_first_token_by_what_crosses(found):
    extra_s = figure(found["shaped"], "ttft_p50_s") - figure(found["open"], "ttft_p50_s")
    least_s = 8 * (STATE_BYTES + MASK_BYTES) / BITS_PER_S
    # What goes out and what comes back wait for each other; later tokens have a small part of it.
    most_s = 8 * sum(request_bytes(found)) / BITS_PER_S
    print(f"{extra_s:.3f} s more to the first token, {least_s:.3f} to {most_s:.3f} s by bytes")
    assert 0.95 * least_s <= extra_s <= 1.15 * most_s
