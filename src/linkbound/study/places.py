"""Whether something was measured where a frozen prediction holds (E3).

On the machine that it was frozen for; a plan on one GPU, over which nothing crosses, on any machine
whose GPUs are the same.
"""

import msgspec

from linkbound.evidence.study import Study
from linkbound.evidence.types import Fingerprint
from linkbound.study.reading import values_of


class Places:
    """The machines of a study, set against the one of a frozen set."""

    def __init__(self, measured: Study, frozen: Fingerprint) -> None:
        self._frozen = frozen
        known = (
            msgspec.convert(values_of(record)["fingerprint"], Fingerprint)
            for record in measured.find("topology.machine")
        )
        self._alike = {one.id for one in known if _kinds(one) == _kinds(frozen) is not None}

    def holds(self, machine: str | None, gpus: int) -> bool:
        """Whether predictions for `gpus` GPUs hold for what was measured on `machine`.

        A record that names no machine is taken at its word.
        """
        return machine in (None, self._frozen.id) or (gpus == 1 and machine in self._alike)


def _kinds(machine: Fingerprint) -> tuple[str, str] | None:
    """Model and memory of the GPUs, where all are alike."""
    found = []
    for name in ("gpus", "gpu_memory"):
        _, _, kind = machine.identity.get(name, "").partition("x ")
        if not kind or ", " in kind:
            return None
        found.append(kind)
    return found[0], found[1]
