"""Two network namespaces with one shaped link between them, inside a user namespace of our own.

Run as `unshare --user --map-root-user --net python serve_namespaces.py LLAMA MODEL FOLDER RATE`: a
llama.cpp server near, with a worker beside it and one beyond the link, loaded by `linkbound serve`
over an open link and over one of RATE bits a second. Prints one JSON object.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

NEAR, FAR = "10.77.0.1", "10.77.0.2"
NEAR_PORT, FAR_PORT = 50051, 50052
PROMPT, OUTPUT = 512, 4
FEW, MANY = 2, 10
WORKERS = ("ggml-rpc-server", "rpc-server")


def say(*argv):
    subprocess.run(argv, check=True, capture_output=True)


@contextlib.contextmanager
def started(*argv):
    """A program of ours, in a group of its own that is always ended."""
    process = subprocess.Popen(
        argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def link_to(pid):
    """The pair of interfaces, one end in the namespace of `pid`."""
    inside = ("nsenter", "--target", str(pid), "--net")
    say("ip", "link", "set", "lo", "up")
    say("ip", "link", "add", "near", "type", "veth", "peer", "name", "far", "netns", str(pid))
    say("ip", "addr", "add", f"{NEAR}/24", "dev", "near")
    say("ip", "link", "set", "near", "up")
    say(*inside, "ip", "addr", "add", f"{FAR}/24", "dev", "far")
    say(*inside, "ip", "link", "set", "far", "up")
    say(*inside, "ip", "link", "set", "lo", "up")
    return inside


def shape(inside, bits_per_s):
    """Both directions: what a burst lets through at once is far less than a prompt's states."""
    limits = ("rate", f"{bits_per_s}bit", "burst", "8kb", "latency", "2s")
    say("tc", "qdisc", "add", "dev", "near", "root", "tbf", *limits)
    say(*inside, "tc", "qdisc", "add", "dev", "far", "root", "tbf", *limits)


def moved():
    """Bytes that crossed the link so far, out and in."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    counts = next(line.split(":")[1].split() for line in lines if line.strip().startswith("near:"))
    return [int(counts[8]), int(counts[0])]


def settled(pid):
    """Wait until the process has entered its own namespace."""
    mine = os.readlink("/proc/self/ns/net")
    until = time.monotonic() + 10
    while os.readlink(f"/proc/{pid}/ns/net") == mine and time.monotonic() < until:
        time.sleep(0.01)


def load(llama, model, study, requests):
    """One request at a time; the first output token waits for the whole prompt to cross."""
    extra = ("--rpc", f"127.0.0.1:{NEAR_PORT},{FAR}:{FAR_PORT}", "--device", "RPC0,RPC1")
    argv = (
        *(sys.executable, "-m", "linkbound.cli", "serve", model, "--engine", "llama.cpp"),
        *("--program", str(llama / "llama-server"), "--split", "pp2", "--arm", "p2p"),
        *(f"--extra={one}" for one in extra),
        *("--concurrency", "1", "--requests", str(requests), "--repeats", "1", "--warm-up", "1"),
        *("--prompt", str(PROMPT), "--output", str(OUTPUT), "--sequences", "1"),
        *("--ready-limit", "60", "-C", str(study), "--json"),
    )
    before = moved()
    done = subprocess.run(argv, capture_output=True, timeout=240, check=False)
    if done.returncode:
        sys.exit(f"{done.stderr.decode()[-1500:]}\n{done.stdout.decode()[-500:]}")
    return {
        "document": json.loads(done.stdout),
        "link_bytes": [now - then for now, then in zip(moved(), before, strict=True)],
    }


def main():
    llama, model, folder, bits_per_s = (
        Path(sys.argv[1]),
        sys.argv[2],
        Path(sys.argv[3]),
        sys.argv[4],
    )
    worker = next(str(llama / name) for name in WORKERS if (llama / name).exists())
    assert shutil.which("tc")
    assert shutil.which("nsenter")
    with started("unshare", "--net", "sleep", "600") as far:
        settled(far.pid)
        inside = link_to(far.pid)
        with (
            started(worker, "-H", "127.0.0.1", "-p", str(NEAR_PORT)),
            started(*inside, worker, "-H", FAR, "-p", str(FAR_PORT)),
        ):
            time.sleep(1.0)
            # Weights cross at every start: two counts of requests tell what one request sends.
            found = {
                "few": load(llama, model, folder / "few.linkbound", FEW),
                "open": load(llama, model, folder / "open.linkbound", MANY),
            }
            shape(inside, bits_per_s)
            found["shaped"] = load(llama, model, folder / "shaped.linkbound", MANY)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
