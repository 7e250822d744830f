"""The same device and the same processors under the names that different tools give them (M4).

Bus ids are compared in the form `0000:01:00.0`, processors as sets of numbers.
"""

import re

_BUS_ID = re.compile(
    r"(?:(?P<domain>[0-9a-f]{1,8}):)?(?P<bus>[0-9a-f]{1,2}):(?P<device>[0-9a-f]{1,2})"
    r"(?:\.(?P<function>[0-7]))?",
    re.IGNORECASE,
)
_PACKED = re.compile(r"[0-9a-f]{4,16}", re.IGNORECASE)
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")
MAX_CPUS = 8192
"""The most that Linux is built for: a longer list is not a list of processors."""


def normal_bus_id(text: str) -> str | None:
    """`0000:01:00.0` for 00000000:01:00.0, 01:00.0 and NCCL's 1000; None if it is no bus id."""
    text = text.strip()
    found = _BUS_ID.fullmatch(text)
    if found:
        domain, bus, device = (int(found[key] or "0", 16) for key in ("domain", "bus", "device"))
        return f"{domain:04x}:{bus:02x}:{device:02x}.{found['function'] or '0'}"
    if not _PACKED.fullmatch(text):
        return None
    # NCCL's logs pack the parts: domain, 8 bits of bus, 8 of device, 4 of function.
    packed = int(text, 16)
    return f"{packed >> 20:04x}:{packed >> 12 & 255:02x}:{packed >> 4 & 255:02x}.{packed & 7}"


def cpus_of_list(text: str) -> frozenset[int] | None:
    """The processors of `0-3,8`; None if the text is not such a list."""
    cpus: set[int] = set()
    for part in text.replace(" ", "").split(","):
        found = _RANGE.fullmatch(part)
        if not found:
            return None
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first or last >= MAX_CPUS:
            return None
        cpus.update(range(first, last + 1))
    return frozenset(cpus)


def same_cpus(a: str, b: str) -> bool:
    """Whether two lists name the same processors, in whatever order."""
    return a == b or (cpus_of_list(a) is not None and cpus_of_list(a) == cpus_of_list(b))


def list_of_cpus(cpus: frozenset[int]) -> str:
    """`0-3,8` for a set of processors."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and spans[-1][1] == cpu - 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def cpus_of_mask(text: str) -> frozenset[int] | None:
    """The processors of a kernel mask, `00000000,00ffffff`; None if it is not one."""
    digits = text.replace(",", "").strip()
    if not re.fullmatch(r"[0-9a-fA-F]+", digits) or len(digits) * 4 > MAX_CPUS:
        return None
    mask = int(digits, 16)
    return frozenset(bit for bit in range(mask.bit_length()) if mask >> bit & 1)
