"""A machine as one SVG: sockets over bridges over GPUs and NICs, every link with its word (M1).

Drawn by us, so that it needs no network, no script and no font: it opens in ten years.
"""

import re
from collections.abc import Sequence
from html import escape

from linkbound.report.topology_fabric import Fabric, fabrics
from linkbound.report.topology_tree import Branch, machine_tree
from linkbound.topology.types import DeviceKind, Gpu, Machine, PathKind
from linkbound.values import Value

MARGIN = 16
LEAF_WIDTH = 108
GAP = 8
LAYER_HEIGHT = 28
LAYER_GAP = 10
LEAF_HEIGHT = 92
LINE_HEIGHT = 16
LANE_HEIGHT = 22
CELL_WIDTH = 50
CELL_HEIGHT = 22
CHAR_WIDTH = 7
"""Pixels of one character at 12 px: an upper estimate for the usual sans-serif fonts."""
NICS_IN_COLUMN = 12

_STYLE = """
svg{color:#1f2328;font:12px system-ui,sans-serif}.page{fill:#fff}
.box{fill:currentColor;fill-opacity:.06;stroke:currentColor;stroke-opacity:.45}
.gpu{fill:#3fa34d;fill-opacity:.22}.nic{fill:#8a63d2;fill-opacity:.18}
.unknown{stroke-dasharray:4 3}.line{fill:none;stroke:currentColor;stroke-opacity:.6}
.fabric{fill:none;stroke:#2f7fd1;stroke-width:2}.near{fill:#2f7fd1}
text{fill:currentColor}.bold{font-weight:600}.small{font-size:11px}.mid{text-anchor:middle}
@media(prefers-color-scheme:dark){svg{color:#e6edf3}.page{fill:#0d1117}}
"""
# How strongly a cell of the matrix is filled: the nearer, the stronger; the word stands in it.
_STRENGTH = {
    PathKind.NVLINK: 0.75,
    PathKind.XGMI: 0.75,
    PathKind.C2C: 0.75,
    PathKind.PIX: 0.5,
    PathKind.PXB: 0.4,
    PathKind.PHB: 0.28,
    PathKind.NODE: 0.18,
    PathKind.SYS: 0.08,
}


class Box(Value, frozen=True, kw_only=True):
    """A rectangle with lines of text; `title` is what a pointer over it shows."""

    x: int
    y: int
    width: int
    height: int
    lines: tuple[str, ...]
    title: str
    look: str
    key: str = ""
    """Of a GPU: links end at its box."""


def render_topology_svg(machine: Machine) -> str:
    """The picture as one SVG document: no script, no reference to anything outside."""
    roots = machine_tree(machine)
    depth = max((_depth(root) for root in roots), default=0)
    top = MARGIN + 2 * LINE_HEIGHT
    leaf_y = top + depth * (LAYER_HEIGHT + LAYER_GAP)
    boxes: list[Box] = []
    x = MARGIN
    gpus = {gpu.key: gpu for gpu in machine.gpus}
    for root in roots:
        x += _place(root, x, top, leaf_y, gpus, boxes) + 2 * GAP
    body = [_box(box) for box in boxes]
    places = {box.key: box for box in boxes if box.key}
    bottom = max((box.y + box.height for box in boxes), default=top)
    links, bottom = _fabric_links(fabrics(machine), places, machine, bottom)
    matrix, right, bottom = _matrix(machine, bottom + 2 * LINE_HEIGHT)
    name = f"{len(machine.gpus)} GPUs, from {', '.join(machine.sources)}"
    heading = _text(MARGIN, MARGIN + 12, "bold", _fitted(name, max(x, right) - MARGIN))
    width = max(x, right, MARGIN + len(_fitted(name, max(x, right))) * CHAR_WIDTH, 320)
    return _document(name, width, bottom + MARGIN, [heading, *links, *body, *matrix])


def _document(name: str, width: int, height: int, body: Sequence[str]) -> str:
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-labelledby="topology-title">',
            f'<title id="topology-title">{escape(name)}</title>',
            f"<style>{_STYLE}</style>",
            f'<rect class="page" width="{width}" height="{height}"/>',
            *body,
            "</svg>",
            "",
        )
    )


def _depth(branch: Branch) -> int:
    inner = [_depth(child) for child in branch.children if child.children]
    return 1 + max(inner, default=0) if branch.children else 0


def _place(
    branch: Branch, x: int, y: int, leaf_y: int, gpus: dict[str, Gpu], boxes: list[Box]
) -> int:
    """Places a branch and all below it from `x` on; its width."""
    if not branch.children:
        gpu = gpus.get(branch.key)
        boxes.append(_nic_box([branch], x, leaf_y) if gpu is None else _gpu_box(gpu, x, leaf_y))
        return LEAF_WIDTH
    own = len(boxes)
    at = x
    for child in branch.children:
        if child.kind is not DeviceKind.NIC:
            at += _place(child, at, y + LAYER_HEIGHT + LAYER_GAP, leaf_y, gpus, boxes) + GAP
    nics = [child for child in branch.children if child.kind is DeviceKind.NIC]
    for first in range(0, len(nics), NICS_IN_COLUMN):
        boxes.append(_nic_box(nics[first : first + NICS_IN_COLUMN], at, leaf_y))
        at += LEAF_WIDTH + GAP
    width = at - GAP - x
    boxes.insert(
        own,
        Box(
            x=x,
            y=y,
            width=width,
            height=LAYER_HEIGHT,
            lines=(_fitted(_short(branch.text, width), width),),
            title=branch.text,
            look="box" if branch.kind is not None else "box unknown",
        ),
    )
    return width


def _gpu_box(gpu: Gpu, x: int, y: int) -> Box:
    model = (gpu.model or "").removeprefix("NVIDIA ").removeprefix("AMD ")
    pcie = gpu.pcie
    slot = ""
    if pcie is not None and pcie.max_gt_per_s is not None:
        slot = f"{pcie.max_gt_per_s:g} GT/s" + (f" x{pcie.max_width}" if pcie.max_width else "")
    lines = (gpu.label, *_wrapped(model)[:3], slot)
    facts = (gpu.label, gpu.model, gpu.uuid, gpu.bus_id, slot)
    return Box(
        x=x,
        y=y,
        width=LEAF_WIDTH,
        height=LEAF_HEIGHT,
        lines=tuple(line for line in lines if line),
        title="\n".join(fact for fact in facts if fact),
        look="box gpu",
        key=gpu.key,
    )


def _nic_box(nics: Sequence[Branch], x: int, y: int) -> Box:
    return Box(
        x=x,
        y=y,
        width=LEAF_WIDTH,
        height=12 + LINE_HEIGHT * len(nics),
        lines=tuple(_fitted(nic.text.split("  ")[0], LEAF_WIDTH) for nic in nics),
        title="\n".join(nic.text for nic in nics),
        look="box nic",
    )


def _wrapped(text: str) -> list[str]:
    """A name in lines that fit a leaf, broken at spaces and behind hyphens."""
    lines: list[str] = []
    for part in re.findall(r"[^\s-]*-|[^\s-]+\s*", text):
        if lines and (len(lines[-1]) + len(part.rstrip())) * CHAR_WIDTH <= LEAF_WIDTH - 8:
            lines[-1] += part
        else:
            lines.append(part)
    return [_fitted(line.rstrip(), LEAF_WIDTH) for line in lines]


def _short(text: str, width: int) -> str:
    """A bridge without the word, then without domain 0, as far as its box demands it."""
    for shorter in (text, text.split(" ")[-1], text.split(" ")[-1].removeprefix("0000:")):
        if len(shorter) * CHAR_WIDTH <= width - 8:
            return shorter
    return text


def _fitted(text: str, width: int) -> str:
    """`text`, or as much of it as fits; the whole of it stands in the box's title."""
    room = max(4, (width - 8) // CHAR_WIDTH)
    return text if len(text) <= room else text[: room - 1] + "\u2026"


def _box(box: Box) -> str:
    first = box.y + 18 if len(box.lines) > 1 else box.y + box.height // 2 + 4
    middle = box.x + box.width // 2
    texts = [
        _text(middle, first + at * LINE_HEIGHT, "mid" if at else "mid bold", line)
        for at, line in enumerate(box.lines)
    ]
    return (
        f'<g><title>{escape(box.title)}</title><rect class="{box.look}" x="{box.x}" y="{box.y}" '
        f'width="{box.width}" height="{box.height}" rx="4"/>{"".join(texts)}</g>'
    )


def _text(x: int, y: int, look: str, text: str) -> str:
    return f'<text class="{look}" x="{x}" y="{y}">{escape(text)}</text>'


def _fabric_links(
    groups: Sequence[Fabric], places: dict[str, Box], machine: Machine, bottom: int
) -> tuple[list[str], int]:
    """NVLinks and their like as brackets below the GPUs, each on a lane of its own."""
    shapes, words = [], []
    y = bottom + 4
    ends: dict[str, int] = {}
    wanted: dict[str, int] = {}
    for group in groups:
        for key in group.gpus:
            wanted[key] = wanted.get(key, 0) + 1
    for group in groups:
        y += LANE_HEIGHT
        columns = []
        for key in group.gpus:
            ends[key] = ends.get(key, 0) + 1
            box = places[key]
            columns.append(box.x + box.width * ends[key] // (wanted[key] + 1))
        feet = places[group.gpus[0]].y + LEAF_HEIGHT
        drops = "".join(f"M{column} {feet}V{y}" for column in columns)
        names = ", ".join(machine.gpu(key).label for key in group.gpus)
        middle = (min(columns) + max(columns)) // 2
        half = (len(group.text) * CHAR_WIDTH) // 2 + 4
        title = f"<title>{escape(f'{group.text}: {names}')}</title>"
        shapes.append(
            f'<g>{title}<path class="fabric" d="{drops}M{min(columns)} {y}H{max(columns)}"/></g>'
        )
        words.append(
            f'<g>{title}<rect class="page" x="{middle - half}" y="{y - 8}" '
            f'width="{2 * half}" height="16"/>'
            f"{_text(middle, y + 4, 'mid small bold', group.text)}</g>"
        )
    # Words last, so that no other link runs through them.
    return [*shapes, *words], y


def _matrix(machine: Machine, top: int) -> tuple[list[str], int, int]:
    """Every ordered pair with its word; right and lower edge."""
    if len(machine.gpus) < 2:
        return [], MARGIN, top - LINE_HEIGHT
    paths = {(path.pair.src, path.pair.dst): path for path in machine.pairs}
    shapes = [_text(MARGIN, top, "bold", "GPU (row) to GPU (column)")]
    left, first = MARGIN + CELL_WIDTH, top + LINE_HEIGHT + CELL_HEIGHT
    for at, gpu in enumerate(machine.gpus):
        shapes.append(
            _text(left + at * CELL_WIDTH + CELL_WIDTH // 2, first - 6, "mid small", gpu.label)
        )
        shapes.append(_text(MARGIN, first + at * CELL_HEIGHT + 15, "small", gpu.label))
        for column, other in enumerate(machine.gpus):
            path = paths.get((gpu.key, other.key))
            known = path.label if path is not None else None
            word = "-" if other.key == gpu.key else known or "?"
            strength = _STRENGTH.get(path.kind, 0.0) if path is not None and path.kind else 0.0
            x, y = left + column * CELL_WIDTH, first + at * CELL_HEIGHT
            shapes.append(
                f"<g><title>{escape(f'{gpu.label} to {other.label}: {known or word}')}</title>"
                f'<rect class="near" fill-opacity="{strength}" x="{x}" y="{y}" '
                f'width="{CELL_WIDTH - 2}" height="{CELL_HEIGHT - 2}"/>'
                f"{_text(x + CELL_WIDTH // 2 - 1, y + 15, 'mid small', word)}</g>"
            )
    bottom = first + len(machine.gpus) * CELL_HEIGHT
    known_pairs = sum(path.kind is not None for path in machine.pairs)
    if known_pairs < len(machine.gpus) * (len(machine.gpus) - 1):
        bottom += LINE_HEIGHT
        shapes.append(_text(MARGIN, bottom, "small", "? no source says how this pair is joined"))
    return shapes, left + len(machine.gpus) * CELL_WIDTH + MARGIN, bottom
