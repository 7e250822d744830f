"""Engines that share GPUs: which can, and how much cache each is told to take (P2).

An engine by itself takes all memory that is free. Beside others it takes a cache for the largest
load that it is given.
"""

import msgspec

from linkbound.errors import UsageError
from linkbound.model.read_model import read_model
from linkbound.serve.cache_room import room_bytes
from linkbound.serve.contenders import ServeRun
from linkbound.serve.engines import ENGINES
from linkbound.serve.engines.types import Cache
from linkbound.serve.load_types import Arrival, Cell


def stand_side_by_side(run: ServeRun) -> ServeRun:
    """The run with all of its engines at once.

    Raises UsageError where the engine cannot, InputError where the model's sizes are not known.
    """
    match ENGINES[run.engine].cache:
        case None:
            able = ", ".join(name for name, one in ENGINES.items() if one.cache is not None)
            raise UsageError(
                f"--side-by-side is not for {run.engine}: its cache cannot be told its size.",
                why="Engines on the same GPUs each need a part of the memory.",
                hint=f"Leave it out: contenders run one after the other. These can: {able}.",
            )
        case Cache.PLACES:
            return msgspec.structs.replace(run, side_by_side=True)
        case Cache.BYTES:
            shape, demands = read_model(run.model), at_once(run)
            sizes = tuple(
                room_bytes(shape, one.twin_of or one.split, demands, run.context_tokens)
                for one in run.contenders
            )
            return msgspec.structs.replace(run, side_by_side=True, cache_bytes=sizes)


def at_once(run: ServeRun) -> tuple[tuple[int, int], ...]:
    """(sequences, tokens of each) that every cell or batch has in one engine at the most.

    Requests of an open loop may all be under way where the engine is slow: up to its own limit.
    """
    asked = [(_requests(cell), _tokens(cell)) for cell in run.cells]
    asked += [(one.batch, one.prompt_tokens + one.output_tokens) for one in run.batches]
    return tuple((min(count, run.sequences), tokens) for count, tokens in asked)


def _requests(cell: Cell) -> int:
    return cell.concurrency if cell.concurrency is not None else cell.requests


def _tokens(cell: Cell) -> int:
    if cell.arrival is Arrival.TRACE:
        return max(one.prompt_tokens + one.output_tokens for one in cell.entries)
    return cell.prompt_tokens + cell.output_tokens
