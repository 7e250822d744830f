"""What an engine's adapter says: how it starts, how it is heard, what each arm does to it (P2)."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from linkbound.links.types import Arm
from linkbound.serve.process import Launch
from linkbound.serve.types import SchedulerRules
from linkbound.splits.types import Split
from linkbound.values import Value


class ServerPlan(Value, frozen=True, kw_only=True):
    """One server to start: one replica of a split on its GPUs."""

    model: str
    split: Split
    """Of one replica: its own `replicas` is 1."""
    arm: Arm | None
    """None where nothing is split."""
    devices: tuple[int, ...]
    """Ordinals in rank order; empty where the host has no GPU."""
    port: int
    folder: str
    """Where files of this start may lie."""
    context_tokens: int
    sequences: int
    dummy_weights: bool = False
    program: str | None = None
    """Another program than the engine's usual one."""
    extra: tuple[str, ...] = ()
    """Flags of the user, last on the command line."""
    allow_multicast: bool = False
    measured: bool = True
    """Whether it is there to be measured: with a log of NCCL, without a prefix cache."""
    shard_of: Split | None = None
    """Run the shard that one rank of this split holds, on one GPU (a twin)."""
    cache_bytes: int | None = None
    """Of the cache on each GPU; None: the engine takes what is free."""


class ArmSwitch(Value, frozen=True, kw_only=True):
    """What an arm sets in an engine. All consumers of peer-to-peer, never one variable."""

    environment: Mapping[str, str] = {}
    flags: tuple[str, ...] = ()
    switches_off: tuple[str, ...] = ()
    """Consumers of peer-to-peer that it turns off, in words."""
    cannot: tuple[str, ...] = ()
    """What it leaves open, because the engine has no switch for it."""
    impossible: str | None = None
    """Why this engine has no such arm."""


class Flag(Value, frozen=True, kw_only=True):
    """A flag or variable that is not in every version."""

    name: str
    versions: str
    """`from 0.25`, `to 2.30.4`, `from 2026-04`."""
    meaning: str


class Proof(Value, frozen=True, kw_only=True):
    """A line of the log or a metric, and what it proves."""

    seen: str
    proves: str


class Cache(StrEnum):
    """How large an engine's cache is, where others may stand beside it on the same GPUs."""

    BYTES = "bytes"
    """As large as it is told; it takes all that is free where it is told nothing."""
    PLACES = "places"
    """Always what its sequences need at full length, and no more."""


class Engine(Value, frozen=True, kw_only=True):
    """One adapter. `launch` turns a plan into a command; all else is data for lists and docs."""

    name: str
    title: str
    verified: tuple[str, ...]
    """Versions that this adapter was run against, and in which splits and arms where it has more.

    None: it is `unverified`.
    """
    starts: bool = True
    """False: somebody else started it, only its address is known."""
    launch: Callable[[ServerPlan], Launch] | None = None
    health: str
    """Path that answers 200 once it is ready."""
    ready: str
    """How readiness is seen, and what is seen before."""
    death: str
    """How death and a hang are seen."""
    metrics: str | None
    """Path of its counters; None: it has none."""
    takes_batches: bool = False
    """It is given whole batches and answers with times, not requests and tokens."""
    cache: Cache | None = None
    """None: it takes what is free, or nothing is known of it; none stands beside it."""
    times_reduce: bool = False
    """Its own all-reduce can be timed by itself."""
    stages_in_turn: bool = False
    """A split by layers computes the whole batch stage after stage, and copies tensors in between:
    its child counts and times these copies."""
    chat: bool = False
    """It takes no token ids: asked by chat, with words; the prompt's length is what it counts."""
    extra: Mapping[str, Any] = {}
    """Fields of a request that fix the output's length and keep the prefix cache out."""
    fixed_length: bool
    """Whether those fields make every answer as long as asked."""
    model_name: str | None = None
    """Name to ask for; None: the model as it was given."""
    dummy_weights: str
    """How to run without real weights."""
    arms: Mapping[Arm, ArmSwitch]
    splits: str
    """Splits that the adapter can start, in words."""
    flags: tuple[Flag, ...] = ()
    proofs: tuple[Proof, ...] = ()
    rules: SchedulerRules | None
    """None: no rules are known; with `stages_in_turn` there are none, a batch is one step."""
