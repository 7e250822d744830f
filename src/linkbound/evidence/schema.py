"""The published JSON Schema of a record: `record.schema.json` beside this file holds its text."""

import json

import msgspec

from linkbound.evidence.types import SCHEMA_VERSION, Record


def record_schema_text() -> str:
    """JSON Schema (draft 2020-12) of a record, as it stands in `show --json`."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"linkbound record, schema version {SCHEMA_VERSION}",
        **msgspec.json.schema(Record),
    }
    return json.dumps(schema, indent=2) + "\n"
