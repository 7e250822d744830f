"""A client that follows anything, and small runs of the faulty program."""

import sys
from pathlib import Path

from linkbound.links.types import Arm
from linkbound.serve.batch_types import Batch
from linkbound.serve.client_limit import limit_of
from linkbound.serve.contenders import Contender, ServeRun
from linkbound.serve.load_types import Arrival, Cell, ClientStep
from linkbound.splits.types import Split

FAULTY = Path(__file__).with_name("serve_faulty.py")


def client_limit(chunks_per_s=1e6):
    return limit_of(
        [
            ClientStep(
                streams=8,
                chunks_per_s=chunks_per_s,
                added_ttft_p50_s=0.001,
                gap_p99_s=0.01,
                gap_asked_s=0.01,
                lost_chunks=0,
                kept_up=True,
            )
        ]
    )


def faulty_program(folder):
    """The faulty program as an executable file: it is started without a shell."""
    path = folder / "engine"
    path.write_text(f"#!{sys.executable}\n{FAULTY.read_text()}")
    path.chmod(0o755)
    return str(path)


def cell(**changes):
    plain = {
        "arrival": Arrival.CLOSED,
        "concurrency": 2,
        "requests": 6,
        "prompt_tokens": 16,
        "output_tokens": 4,
        "seed": 1,
        "warm_up": 1,
        "limit_s": 30.0,
    }
    return Cell(**plain | changes)


def asked(program, fault, **changes):
    plain = {
        "engine": "xllamacpp",
        "model": fault,
        "contenders": (Contender(split=Split(), arm=None),),
        "cells": (cell(),),
        "repeats": 1,
        "context_tokens": 64,
        "sequences": 4,
        "program": program,
        "ready_limit_s": 20.0,
    }
    return ServeRun(**plain | changes)


def two_arms(program, model):
    contenders = tuple(Contender(split=Split(tp=2), arm=arm) for arm in (Arm.P2P, Arm.STAGED))
    return asked(program, model, engine="vllm", contenders=contenders, devices=(0, 1))


def plain_batch(**changes):
    plain = {"batch": 2, "prompt_tokens": 16, "output_tokens": 3, "calls": 2}
    return Batch(**plain | changes)
