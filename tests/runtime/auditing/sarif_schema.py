"""What the SARIF 2.1.0 schema asks of the objects that qrole writes, in JSON Schema.

Property names, requirements and value ranges are those of the standard (sections 3.13 to 3.52);
objects that qrole does not write are left out, so that writing one fails.
"""

from __future__ import annotations

from typing import Any

TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
BAG = {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}}}}
LEVEL = {"enum": ["none", "note", "warning", "error"]}


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": required,
        "properties": {key.replace("dollar_", "$"): value for key, value in properties.items()},
        "additionalProperties": False,
    }


MESSAGE = closed(["text"], text=TEXT)
REGION = closed([], startLine={"type": "integer", "minimum": 1})
PHYSICAL = closed(
    ["artifactLocation"],
    artifactLocation=closed([], uri={"type": "string", "format": "uri-reference"}),
    region=REGION,
)
LOCATION = closed(
    [],
    physicalLocation=PHYSICAL,
    logicalLocations={
        "type": "array",
        "uniqueItems": True,
        "items": closed([], fullyQualifiedName={"type": "string"}, kind={"type": "string"}),
    },
)
RESULT = closed(
    ["message"],
    ruleId={"type": "string"},
    ruleIndex={"type": "integer", "minimum": -1},
    level=LEVEL,
    message=MESSAGE,
    locations={"type": "array", "items": LOCATION},
    occurrenceCount={"type": "integer", "minimum": 1},
    partialFingerprints={"type": "object", "additionalProperties": {"type": "string"}},
)
RULE = closed(
    ["id"],
    id={"type": "string"},
    shortDescription=MESSAGE,
    fullDescription=MESSAGE,
    help=MESSAGE,
    defaultConfiguration=closed([], level=LEVEL),
    properties=BAG,
)
SCHEMA = closed(
    ["version", "runs"],
    dollar_schema={"type": "string", "format": "uri"},
    version={"const": "2.1.0"},
    runs={
        "type": "array",
        "minItems": 1,
        "items": closed(
            ["tool"],
            tool=closed(
                ["driver"],
                driver=closed(
                    ["name"],
                    name=TEXT,
                    semanticVersion={"type": "string"},
                    rules={"type": "array", "uniqueItems": True, "items": RULE},
                ),
            ),
            invocations={
                "type": "array",
                "items": closed(["executionSuccessful"], executionSuccessful={"type": "boolean"}),
            },
            results={"type": "array", "items": RESULT},
            columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
            properties=BAG,
        ),
    },
)
