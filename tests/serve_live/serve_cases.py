"""A client that follows anything, for tests that are not about the client."""

from linkbound.serve.client_limit import limit_of
from linkbound.serve.load_types import ClientStep


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
