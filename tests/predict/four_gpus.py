"""A made-up machine: four H200, every pair on NVLink, curves of the recorded pair's sizes.

What it shows is that a runs file of four GPUs goes through, not how four H200 behave.
"""

from importlib.resources import files
from pathlib import Path

RECORDED = files("linkbound") / "recorded" / "h200-pair"
_RANK = "#  Rank  {0} Group  0 Pid    667 on      hostA device  {0} [0000:00:0{1}] NVIDIA H200\n"
_TESTS = ("all_reduce", "all_reduce.graph", "sendrecv")


def write_four_gpus(folder: Path) -> Path:
    """The folder with the files of the machine."""
    names = [f"GPU{number}" for number in range(4)]
    lines = ["\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity"]
    for one in names:
        cells = (" X " if one == other else "NV18" for other in names)
        lines.append("\t".join([one, *cells, "0-31", "0"]))
    (folder / "topo-m.txt").write_text("\n".join(lines) + "\n")
    (folder / "machine.toml").write_text('note = "four H200"\nengine_from = "h200-pair"\n')
    (folder / "nvidia-smi.txt").write_text(_four_times((RECORDED / "nvidia-smi.txt").read_text()))
    for test in _TESTS:
        for arm in ("p2p-on", "p2p-off"):
            text = (RECORDED / "nccl-tests" / f"{test}.{arm}.txt").read_text()
            more = _RANK.format(2, 8) + _RANK.format(3, 9)
            text = text.replace("nGpus 2", "nGpus 4").replace("#  Rank  1", more + "#  Rank  1")
            (folder / f"{test}.{arm}.txt").write_text(text)
    return folder


def _four_times(text: str) -> str:
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("|   1  NVIDIA"))
    block = "\n".join(lines[at : at + 4])
    more = [
        block.replace("|   1  ", f"|   {number}  ").replace("00:07.0", f"00:0{number + 6}.0")
        for number in (2, 3)
    ]
    return "\n".join([*lines[: at + 4], *more, *lines[at + 4 :]])
