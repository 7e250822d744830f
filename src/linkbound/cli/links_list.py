"""What `linkbound links -l` lists: methods of copies and families of collectives, text or JSON."""

import json
from typing import Any

from linkbound.links.live.families import ABOUT, why_skipped
from linkbound.links.live.tasks import METHODS, About
from linkbound.links.types import Arm
from linkbound.topology.types import Machine

SCHEMA = "linkbound.links.list"
VERSION = 1


def render_list(machine: Machine, as_json: bool) -> str:
    """Each method and family with what it does, or why it would be skipped here."""
    found = _listed(machine)
    if as_json:
        content = {"schema": SCHEMA, "version": VERSION, **found}
        return json.dumps(content, indent=2, allow_nan=False)
    lines = ["copies"]
    width = max(len(one["name"]) for one in found["copies"])
    for one in found["copies"]:
        lines.append(f"{one['name'].ljust(width)}  {one['path'].ljust(9)}  {one['about']}")
    if found["copies_skipped"] is not None:
        lines.append(f"All would be skipped: {found['copies_skipped']}")
    lines.append("collectives")
    width = max(len(one["name"]) for one in found["collectives"])
    for one in found["collectives"]:
        text = one["about"] if one["skipped"] is None else f"skipped: {one['skipped']}"
        lines.append(f"{one['name'].ljust(width)}  {text}")
    return "\n".join(lines)


def _listed(machine: Machine) -> dict[str, Any]:
    few = len(machine.gpus) < 2
    return {
        "copies": [
            {"name": method.value, "path": _path(about), "about": about.text}
            for method, about in METHODS.items()
        ],
        "copies_skipped": f"{len(machine.gpus)} GPUs are here, a pair is two." if few else None,
        "collectives": [
            {"name": family.value, "about": about, "skipped": why_skipped(family)}
            for family, about in ABOUT.items()
        ],
    }


def _path(about: About) -> str:
    if about.arm is None:
        return "host link"
    return "P2P on" if about.arm is Arm.P2P else "P2P off"
