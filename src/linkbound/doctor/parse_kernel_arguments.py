"""Kernel command lines: /proc/cmdline, boot logs and boot loaders' files, with what they say (M3).

A line of prose that mentions an option is no command line, and a comment proves nothing.
"""

import re
from collections.abc import Iterable, Iterator

from linkbound.doctor.types import KernelArguments, Place

_LOGGED = re.compile(r"(?:Kernel c|\bC)ommand line: (.+)$")
_GRUB = re.compile(r"^\s*GRUB_CMDLINE_\w+\s*=\s*([\"']?)(.*?)\1\s*$")
_LOADER = re.compile(r"^\s*(?:options|linux(?:16|efi)?)\s+(?=.*\broot=)(.+)$")
_WORD = re.compile(r"^[\w.\-]+(?:=\S+)?$")
_FLAGS = frozenset(
    ("ro", "rw", "quiet", "splash", "nosplash", "nomodeset", "debug", "single", "auto", "rhgb")
)
_SIGNS = re.compile(
    r"^(?:BOOT_IMAGE|root|initrd|(?:\w+_)?iommu(?:\.\w+)?|pcie_acs_override|mitigations)="
)
_NEEDLES = ("ommand line: ", "GRUB_CMDLINE", "root=", "BOOT_IMAGE=", "iommu", "mitigations=")
_LONGEST = 4096

PASSTHROUGH = frozenset(("iommu=pt", "iommu.passthrough=1"))
OFF = frozenset(("iommu=off", "iommu=soft", "intel_iommu=off", "amd_iommu=off"))


def parse_kernel_arguments(text: str, source: str) -> tuple[KernelArguments, ...]:
    """The command lines in `text`; none where there is no such line."""
    return tuple(_lines(text, source)) if any(sign in text for sign in _NEEDLES) else ()


def _lines(text: str, source: str) -> Iterator[KernelArguments]:
    for number, line in enumerate(text.splitlines(), 1):
        place = Place(source=source, line=number)
        if len(line) > _LONGEST or line.lstrip().startswith("#"):
            continue
        if logged := _LOGGED.search(line):
            yield _arguments(place, logged.group(1), in_use=True)
        elif (grub := _GRUB.match(line)) or (loader := _LOADER.match(line)):
            words = grub.group(2) if grub else loader.group(1) if loader else ""
            if words.strip():
                yield _arguments(place, words, in_use=False)
        elif is_command_line(line):
            yield _arguments(place, line, in_use=True)


def _arguments(place: Place, words: str, *, in_use: bool) -> KernelArguments:
    return KernelArguments(place=place, words=tuple(words.split()), in_use=in_use)


def is_command_line(line: str) -> bool:
    """Whether a bare line is a command line: options only, one of them of boot or IOMMU."""
    words = line.split()
    if not words or not all(map(_WORD.match, words)) or not any(map(_SIGNS.match, words)):
        return False
    plain = [word for word in words if "=" not in word and word not in _FLAGS]
    return len(plain) * 3 <= len(words)


def in_force(found: Iterable[KernelArguments]) -> tuple[KernelArguments, ...]:
    """The lines in use; where none is shown, what the boot loader is told stands for them."""
    lines = tuple(found)
    return tuple(line for line in lines if line.in_use) or lines


def passes_through(arguments: KernelArguments) -> str | None:
    """The option that leaves addresses of devices untranslated; None where there is none."""
    last = [word for word in arguments.words if word in PASSTHROUGH | OFF]
    contrary = {"iommu=nopt", "iommu=force", "iommu.passthrough=0"} & set(arguments.words)
    return last[-1] if last and not contrary else None


def translates(arguments: KernelArguments) -> str | None:
    """The option that asks for translation; None where nothing does or another undoes it."""
    if passes_through(arguments):
        return None
    asked = ("intel_iommu=on", "iommu=nopt", "iommu.passthrough=0")
    return next((word for word in arguments.words if word.startswith(asked)), None)


def mentions_iommu(arguments: KernelArguments) -> bool:
    """Whether any option of the line is about the IOMMU."""
    return any("iommu" in word.partition("=")[0] for word in arguments.words)
