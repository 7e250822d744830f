"""A rank's network from its job: device, type, transport and controls (P1)."""

from collections.abc import Callable

import torch

from linkbound.links.types import Arm
from linkbound.profile.exchange import Exchange, device_delay, host_delay
from linkbound.profile.holding import hold
from linkbound.profile.ledger import Ledger
from linkbound.profile.network import Network
from linkbound.profile.transport import ProcessGroups, Transport, tensor_ranks
from linkbound.profile.types import Device, Job, Point
from linkbound.profile.weights import Maker
from linkbound.splits.types import Phase


def build(job: Job, number: int, transport: Transport) -> tuple[Network, Ledger, Maker]:
    """Rank `number`'s network, its ledger, and what made the weights: it has counted them."""
    device = torch.device("cuda" if job.device is Device.CUDA else "cpu")
    # Float32 on a CPU: there the splits are compared with one another, not timed.
    dtype = torch.bfloat16 if job.device is Device.CUDA else torch.float32
    held = hold(job.shape, job.split, number)
    ledger = Ledger(number)
    maker = Maker(job.seed, dtype, device)
    own = None
    ranks = tensor_ranks(held)
    own_way = job.arm is Arm.P2P and job.device is Device.CUDA and len(ranks) > 1
    if own_way and isinstance(transport, ProcessGroups):
        from linkbound.profile.symmetric import SymmetricAllReduce

        own = SymmetricAllReduce(transport.group(ranks), dtype, device)
    exchange = Exchange(held, transport, ledger, dtype, device, own, _delay(job, number))
    network = Network(held, maker, exchange)
    return network, ledger, maker


def prompts(job: Job, point: Point, device: torch.device) -> torch.Tensor:
    """Token ids of every sequence of `point`: from the seed, the same on every rank."""
    source = torch.Generator().manual_seed(job.seed)
    length = point.tokens if point.phase is Phase.PREFILL else 1
    ids = torch.randint(job.shape.vocabulary, (point.batch, length), generator=source)
    return ids.to(device)


def _delay(job: Job, number: int) -> Callable[[], None] | None:
    if job.delay is None or job.delay.rank != number:
        return None
    make = device_delay if job.device is Device.CUDA else host_delay
    return make(job.delay.seconds)
