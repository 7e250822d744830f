"""The JSON document: valid by its schema, no NaN, a reason beside what is missing."""

import json
from importlib import resources
from typing import Any

import jsonschema
import msgspec
import pytest
from sample_report import record_id, sample_report

from linkbound.report.document import build_document, render_json


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return json.loads(render_json(sample_report()))


def _schema() -> dict[str, Any]:
    path = resources.files("linkbound.report") / "report.schema.json"
    return json.loads(path.read_text(encoding="utf-8"))


def test_it_is_valid_by_the_published_schema(document: dict[str, Any]) -> None:
    schema = _schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(document)


def test_the_schema_names_every_key_of_the_top(document: dict[str, Any]) -> None:
    schema = _schema()
    assert set(document) == set(schema["properties"]) == set(schema["required"])


def test_a_report_without_score_plan_or_links_is_valid_too() -> None:
    report = sample_report()
    load = report.loads[0]
    verdict = msgspec.structs.replace(load.verdict, plan=None, plans=())
    bare = msgspec.structs.replace(
        report,
        score=None,
        curves=(),
        pair_rates=(),
        pair_latencies=(),
        fits=(),
        maps=(),
        loads=(msgspec.structs.replace(load, verdict=verdict, forecasts=()),),
    )
    found = build_document(bare)
    jsonschema.Draft202012Validator(_schema()).validate(json.loads(render_json(bare)))
    assert found["score"] is None
    assert found["score_reason"]["code"] == "no_runs"
    assert found["loads"][0]["verdict"]["plan"] is None
    assert found["loads"][0]["verdict"]["reason"]["code"] == "no_plan"


def test_nan_is_refused() -> None:
    report = sample_report()
    broken = msgspec.structs.replace(report.pair_rates[0], bytes_per_s=float("nan"))
    with pytest.raises(ValueError, match="not JSON compliant"):
        render_json(msgspec.structs.replace(report, pair_rates=(broken,)))


def test_figures_keep_their_values_and_records(document: dict[str, Any]) -> None:
    forecast = sample_report().loads[0].forecasts[2]
    row = document["loads"][0]["forecasts"][2]
    assert row["plan"]["name"] == "tp2, p2p"
    assert row["latency_s"]["value"] == forecast.latency_s.value
    assert row["record_ids"] == [record_id("runs")]
    assert document["pairs"]["record_ids"] == [record_id("nvbandwidth")]


def test_what_is_missing_is_null_with_a_reason(document: dict[str, Any]) -> None:
    curve = next(one for one in document["curves"] if len(one["points"]) == 1)
    assert curve["fit"]["bytes_per_s"] is None
    assert curve["fit"]["reason"]["code"] == "regime_not_reached"
    assert document["pairs"]["rates"][0]["size_bytes"] is None
    assert document["pairs"]["rates"][0]["reason"]["code"] == "not_printed"
    flips = [one["break_even"] for one in document["loads"][0]["verdict"]["plans"]]
    never = [one for one in flips if one["bytes_per_s"] is None]
    assert never
    assert {one["reason"]["code"] for one in never} == {"never_flips"}


def test_every_interval_holds_its_value(document: dict[str, Any]) -> None:
    found = list(_intervals(document))
    assert len(found) > 300
    assert all(one["low"] <= one["value"] <= one["high"] for one in found)


def _intervals(value: Any) -> Any:
    if isinstance(value, dict):
        if {"low", "value", "high"} <= set(value) and value["low"] is not None:
            yield value
        for inner in value.values():
            yield from _intervals(inner)
    if isinstance(value, list):
        for inner in value:
            yield from _intervals(inner)
