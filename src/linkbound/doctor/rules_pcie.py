"""PCIe links and slots: lanes that are missing, speeds at idle, chipset slots, BAR1 (M1, M3)."""

from collections.abc import Iterator
from statistics import mode

from linkbound.doctor.gpus import gpu_buses
from linkbound.doctor.parts import is_chipset, is_chipset_id
from linkbound.doctor.types import Facts, LimitedLink, LinkRow
from linkbound.doctor.vocabulary import by_source, healthy, listed, seen, suspected
from linkbound.evidence.types import Finding
from linkbound.topology.types import Device, Gpu, Machine, PcieLink
from linkbound.units import format_capacity, format_size

_SMALL_BAR1_BYTES = 256 * 1024**2
"""The window of a card without Resizable BAR, whatever its memory."""


def chain(machine: Machine, gpu: Gpu) -> list[Device]:
    """The devices above a GPU, nearest first."""
    tree = {device.key: device for device in machine.devices}
    above: list[Device] = []
    key = gpu.parent
    while key is not None and key in tree and tree[key] not in above:
        above.append(tree[key])
        key = tree[key].parent
    return above


def links(facts: Facts) -> Iterator[Finding]:
    """Width and speed of each GPU's link and of the links of the bridges above it."""
    for machine in facts.machines:
        narrow, idle = [], []
        for gpu in machine.gpus:
            name = f"{gpu.label} {gpu.bus_id or ''}".strip()
            narrow += [f"{name}: {text}" for text in _narrow(machine, gpu)]
            if gpu.pcie and (text := _slow(gpu.pcie)):
                idle.append(f"{name}: {text}")
        where = machine.sources[0]
        if narrow:
            yield seen("link-width-reduced", f"{listed(narrow)} ({where}).")
        if idle:
            text = f"{listed(idle)} with all lanes, load not stated ({where})."
            yield healthy("link-speed-idle", text)
        yield from _narrower_sibling(machine)


def _narrower_sibling(machine: Machine) -> Iterator[Finding]:
    """NCCL's file gives one width a link, the smaller of both ends, and no maximum beside it."""
    widths = {
        gpu.label: gpu.pcie.max_width
        for gpu in machine.gpus
        if gpu.pcie and gpu.pcie.width is None and gpu.pcie.max_width
    }
    models = {gpu.device_id for gpu in machine.gpus}
    widest = max(widths.values(), default=0)
    narrow = [f"{label} x{width}" for label, width in widths.items() if width < widest]
    if narrow and len(models) == 1:
        text = f"{listed(narrow)}, x{widest} on its siblings ({machine.sources[0]})."
        yield suspected("link-width-reduced", text)


def _narrow(machine: Machine, gpu: Gpu) -> Iterator[str]:
    if gpu.pcie and (text := _missing_lanes(gpu.pcie, None)):
        yield text
    bridges = chain(machine, gpu)
    below: PcieLink | None = gpu.pcie
    for device in bridges:
        # A port's width is that of the device below it: an x8 card in an x16 port is complete.
        if device.pcie and (text := _missing_lanes(device.pcie, below)) and below is not gpu.pcie:
            yield f"{text} at {device.bus_id or device.label} above it"
        below = device.pcie


def _missing_lanes(link: PcieLink, partner: PcieLink | None) -> str | None:
    most = link.max_width
    if partner and partner.max_width and most:
        most = min(most, partner.max_width)
    if link.width is None or most is None or link.width >= most:
        return None
    return f"x{link.width} of x{most}"


def _slow(link: PcieLink) -> str | None:
    """A lower speed on complete lanes: what an idle GPU does."""
    if link.gt_per_s is None or link.max_gt_per_s is None or link.gt_per_s >= link.max_gt_per_s:
        return None
    if link.width is None or (link.max_width is not None and link.width < link.max_width):
        return None
    return f"{link.gt_per_s:g} of {link.max_gt_per_s:g} GT/s"


def limited_by_kernel(facts: Facts) -> Iterator[Finding]:
    """The kernel's line at boot that a GPU gets less bandwidth than it is capable of."""
    gpus = gpu_buses(facts)
    for known in (True, False):
        found = [link for link in facts.limited_links if _is_limited_gpu(link, gpus) is known]
        if not found:
            continue
        text = listed(
            f"{link.device} {link.gt_per_s:g} GT/s x{link.width} of {link.capable_gt_per_s:g} GT/s "
            f"x{link.capable_width}, limited at {link.at}"
            for link in found
        )
        where = by_source(link.place for link in found)
        if known:
            yield seen("link-width-reduced", f"{text} ({where}).")
        elif not gpus:
            yield suspected("link-width-reduced", f"{text} ({where}); which device is a GPU?")


def _is_limited_gpu(link: LimitedLink, gpus: frozenset[str]) -> bool:
    return link.device in gpus or link.driver in ("nvidia", "amdgpu")


def query_rows(facts: Facts) -> Iterator[Finding]:
    """The rows of `nvidia-smi --query-gpu`: against their maximum, else against each other."""
    for source in dict.fromkeys(row.place.source for row in facts.link_rows):
        rows = [row for row in facts.link_rows if row.place.source == source]
        stated = [row for row in rows if row.width and row.max_width and row.width < row.max_width]
        if stated:
            text = listed(f"{row.gpu} x{row.width} of x{row.max_width}" for row in stated)
            yield seen("link-width-reduced", f"{text} ({by_source(r.place for r in stated)}).")
        slow = [row for row in rows if _is_slow(row) and row not in stated]
        loaded = [row for row in slow if row.busy]
        if loaded:
            text = listed(f"{r.gpu} Gen{r.generation} of Gen{r.max_generation}" for r in loaded)
            yield seen("link-width-reduced", f"{text} under load ({source}).")
        elif slow:
            text = listed(f"{r.gpu} Gen{r.generation} of Gen{r.max_generation}" for r in slow)
            yield healthy("link-speed-idle", f"{text}, load not stated ({source}).")
        yield from _narrower(rows, source)


def _is_slow(row: LinkRow) -> bool:
    now, most = row.generation, row.max_generation
    return now is not None and most is not None and now < most


def _narrower(rows: list[LinkRow], source: str) -> Iterator[Finding]:
    widths = [row.width for row in rows if row.width and row.max_width is None]
    widest = max(widths, default=0)
    narrow = [row for row in rows if row.width and row.max_width is None and row.width < widest]
    if narrow:
        text = listed(f"{row.gpu} x{row.width}" for row in narrow)
        most = f"its siblings have x{widest}; the maximum is not given"
        yield suspected("link-width-reduced", f"{text}, {most} ({source}).")
    generations = [row.max_generation for row in rows if row.max_generation]
    if len(set(generations)) > 1:
        usual = mode(generations)
        odd = [row for row in rows if row.max_generation and row.max_generation < usual]
        if odd and not narrow:
            text = listed(f"{row.gpu} Gen{row.max_generation}" for row in odd)
            yield suspected("link-width-reduced", f"{text}, Gen{usual} elsewhere ({source}).")


def chipset_slots(facts: Facts) -> Iterator[Finding]:
    """GPUs whose way to the CPU runs through a chipset."""
    for machine in facts.machines:
        found = []
        for gpu in machine.gpus:
            bridge = next((device for device in chain(machine, gpu) if is_chipset(device)), None)
            if bridge:
                name = bridge.facts.get("Name") or bridge.label
                found.append(f"{gpu.label} {gpu.bus_id} below {bridge.bus_id} ({name[:60]})")
        if found:
            yield seen("chipset-slot", f"{listed(found)} ({machine.sources[0]}).")
    yield from _chipset_in_log(facts)


def _chipset_in_log(facts: Facts) -> Iterator[Finding]:
    """A boot log shows no tree, but devices that are limited at one port share the way to it."""
    gpus = gpu_buses(facts)
    bridges = {
        line.bus_id: line.device_id for line in facts.pci_lines if is_chipset_id(line.device_id)
    }
    for link in facts.limited_links:
        if not _is_limited_gpu(link, gpus):
            continue
        others = [one for one in facts.limited_links if one.at == link.at and one != link]
        shared = next((one.device for one in others if one.device in bridges), None)
        if shared:
            text = (
                f"{link.device} and the chipset's bridge {shared} [{bridges[shared]}] hang on the "
                f"same link at {link.at} ({link.place})."
            )
            yield seen("chipset-slot", text)
        elif any(not _is_limited_gpu(one, gpus) for one in others):
            names = listed(one.device for one in others)
            text = f"{link.device} shares its limiting link at {link.at} with {names}"
            yield suspected("chipset-slot", f"{text} ({link.place}).")


def bar1(facts: Facts) -> Iterator[Finding]:
    """BAR1 windows that cannot map the card's memory."""
    for machine in facts.machines:
        small = [gpu for gpu in machine.gpus if _is_small(gpu)]
        if small:
            text = listed(
                f"{gpu.label} BAR1 {format_size(gpu.bar1_bytes or 0)}{_of_memory(gpu)}"
                for gpu in small
            )
            yield seen("bar1-too-small", f"{text} ({machine.sources[0]}).")
    for source, size in facts.bar1:
        if size <= _SMALL_BAR1_BYTES:
            yield seen("bar1-too-small", f"BAR 1 of {format_size(size)} ({source}).")


def _is_small(gpu: Gpu) -> bool:
    # An instance of a MIG device shares the card's window: its size says nothing about it.
    if gpu.bar1_bytes is None or gpu.mig or gpu.vendor == "AMD":
        return False
    # nvidia-smi prints the memory that is usable, which is below the window of a full BAR1.
    below = gpu.memory_bytes is not None and gpu.bar1_bytes < gpu.memory_bytes
    return gpu.bar1_bytes <= _SMALL_BAR1_BYTES or below


def _of_memory(gpu: Gpu) -> str:
    return "" if gpu.memory_bytes is None else f" for {format_capacity(gpu.memory_bytes)}"
