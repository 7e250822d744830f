"""Where a child's time went, as it is told."""

import pytest

from linkbound.profile import spent
from linkbound.profile.launch import _SPENT


def test_parts_stand_behind_what_they_are_parts_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = iter([13.5, 15.0, 15.05, 17.25, 18.0])
    monkeypatch.setattr(spent.time, "monotonic", lambda: next(now_s))
    told = spent.Spent(0, 10.0)
    told.on("imports")
    told.part("warm-up")
    told.part("too short")
    told.on("prefill")
    told.on("decode")
    assert [found[2] for found in _SPENT.finditer(capsys.readouterr().err)] == [
        "3.5 s imports",
        "3.8 s prefill (warm-up 1.5)",
        "0.8 s decode",
    ]
