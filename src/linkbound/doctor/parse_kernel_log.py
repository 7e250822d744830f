"""Kernel messages about PCIe and the IOMMU: faults, limited links, devices at boot (M3).

Reads dmesg, journal and syslog, with any time stamp before the message.
"""

import re

from linkbound.doctor.types import DmaFault, LimitedLink, PciLine, Place

_ADDRESS = r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_DRIVER = r"(?:\b(?P<driver>[A-Za-z][\w-]{1,30}) (?P<device>" + _ADDRESS + r"):? )?"
_AMD_FAULT = re.compile(
    _DRIVER + r"AMD-Vi: Event logged \[?IO_PAGE_FAULT(?: device=(?P<other>" + _ADDRESS + r"))?",
    re.I,
)
_INTEL_FAULT = re.compile(
    r"DMAR: ?\[DMA (?:Read|Write)[^\]]{0,40}\] Request device \[?(?P<other>" + _ADDRESS + r")", re.I
)
_LIMITED = re.compile(
    r"\b(?P<driver>[A-Za-z][\w-]{1,30}) (?P<device>" + _ADDRESS + r"): [\d.]+ Gb/s available PCIe "
    r"bandwidth, limited by (?P<speed>[\d.]{1,8}) GT/s (?:PCIe )?x(?P<width>\d{1,2}) link at "
    r"(?P<at>" + _ADDRESS + r") \(capable of [\d.]+ Gb/s with (?P<most>[\d.]{1,8}) GT/s "
    r"(?:PCIe )?x(?P<lanes>\d{1,2}) link",
    re.I,
)
_FUNCTION = re.compile(
    r"\bpci (?P<device>" + _ADDRESS + r"): \[(?P<id>[0-9a-f]{4}:[0-9a-f]{4})\] type \d\d class "
    r"0x(?P<class>[0-9a-f]{6})",
    re.I,
)
_NEEDLES = ("IO_PAGE_FAULT", "DMAR:", "available PCIe bandwidth", " class 0x")
_LONGEST = 1000
_MOST_FACTS = 20_000

Fact = DmaFault | LimitedLink | PciLine


def parse_kernel_log(text: str, source: str) -> tuple[Fact, ...]:
    """The facts in a kernel log, in order; none where no line is known."""
    facts: list[Fact] = []
    once: set[tuple[type, str]] = set()
    for number, line in enumerate(text.splitlines(), 1):
        if not any(needle in line for needle in _NEEDLES):
            continue
        fact = _fact(line[:_LONGEST], Place(source=source, line=number))
        if fact is None or (key := (type(fact), _subject(fact))) in once:
            continue
        if not isinstance(fact, DmaFault):
            once.add(key)  # A device is listed again at each boot; faults are counted.
        facts.append(fact)
    return tuple(facts[:_MOST_FACTS])


def _subject(fact: Fact) -> str:
    return fact.bus_id if isinstance(fact, PciLine) else fact.device


def _fact(line: str, place: Place) -> Fact | None:
    if found := _LIMITED.search(line):
        return _limited(found, place)
    if found := _FUNCTION.search(line):
        return PciLine(
            place=place,
            bus_id=with_domain(found["device"]),
            device_id=found["id"].lower(),
            class_code=int(found["class"], 16) >> 8,
        )
    if found := _AMD_FAULT.search(line):
        device = found["other"] or found["device"]
        return _fault(place, device, found["driver"], "AMD-Vi") if device else None
    if found := _INTEL_FAULT.search(line):
        return _fault(place, found["other"], None, "DMAR")
    return None


def _limited(found: re.Match[str], place: Place) -> LimitedLink | None:
    try:
        speed, most = float(found["speed"]), float(found["most"])
    except ValueError:
        return None
    return LimitedLink(
        place=place,
        device=with_domain(found["device"]),
        driver=_named(found["driver"]),
        at=with_domain(found["at"]),
        gt_per_s=speed,
        width=int(found["width"]),
        capable_gt_per_s=most,
        capable_width=int(found["lanes"]),
    )


def _fault(place: Place, device: str, driver: str | None, unit: str) -> DmaFault:
    return DmaFault(place=place, device=with_domain(device), driver=_named(driver), unit=unit)


def _named(driver: str | None) -> str | None:
    """The driver before a bus id; the PCI core's own lines name none."""
    return None if driver is None or driver.lower() in ("pci", "kernel", "device") else driver


def with_domain(address: str) -> str:
    """`0000:07:00.0` of `07:00.0` and of `00000000:07:00.0`."""
    parts = address.lower().split(":")
    if len(parts) == 2:
        return f"0000:{address.lower()}"
    return ":".join((parts[0][-4:].rjust(4, "0"), *parts[1:]))
