"""Reading the configurations under tests/configs."""

from collections.abc import Mapping
from pathlib import Path

from linkbound.model import ModelShape, parse_config

CONFIGS = Path(__file__).parent.parent / "configs"
NAMES = sorted(path.parent.name for path in CONFIGS.glob("*/config.json"))


def real(name: str, overrides: Mapping[str, str] | None = None) -> ModelShape:
    """A real configuration with its quantisation file where there is one."""
    directory = CONFIGS / name
    side = directory / "hf_quant_config.json"
    quant = side.read_text(encoding="utf-8") if side.exists() else None
    text = (directory / "config.json").read_text(encoding="utf-8")
    return parse_config(text, f"{name}/config.json", quant, overrides)


def written(name: str, overrides: Mapping[str, str] | None = None) -> ModelShape:
    """A configuration written for the tests."""
    text = (CONFIGS / "written" / f"{name}.json").read_text(encoding="utf-8")
    return parse_config(text, f"{name}.json", None, overrides)
