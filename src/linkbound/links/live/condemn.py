"""What wrong bytes condemn: a pair for all that is direct, else one method of it (L6)."""

from linkbound.links.live.cell import Cell, condemnation
from linkbound.links.live.rows import LinkRow


def condemned_by_row(row: LinkRow, cell: Cell) -> frozenset[str]:
    """Of a set only the member that was wrong; else all that the cell is about."""
    if cell.members:
        hit = [one for one in cell.members if (one.src, one.dst) == row.group]
        return frozenset(condemnation(one.src, one.dst, one.method) for one in hit)
    return cell.condemned_by
