"""Schemas: what is supported accepts exactly the valid values, and what is not is refused with its place.

The folder GENWRIGHT_JSON_SCHEMAS holds `maskbench/data`, of github.com/guidance-ai/jsonschemabench, and `tests`, of
github.com/json-schema-org/JSON-Schema-Test-Suite.
"""

import json
import os
import random
import re
from collections import Counter
from pathlib import Path

import jsonschema
import pytest
from text.engine.json_writings import Checker

from genwright.errors import UserError
from genwright.text.engine.schema import subschemas

PUBLIC = Path(os.environ.get("GENWRIGHT_JSON_SCHEMAS", "/nonexistent"))
public = pytest.mark.skipif(not PUBLIC.is_dir(), reason="GENWRIGHT_JSON_SCHEMAS names no folder of public schemas")
# The files of the test suite whose keywords we claim; some of their schemas are refused.
CLAIMED = [
    "additionalProperties",
    "allOf",
    "anyOf",
    "boolean_schema",
    "const",
    "default",
    "defs",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "infinite-loop-detection",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "ref",
    "required",
    "type",
]
VALUES = [
    None, True, False, 0, 1, -1, 7, 12, 100, 0.5, 2.0, 1.25, "", "a", "ab", "abc", "aé", "2024-05-17", "x1", "1x",
    [], [1], [1, "a"], ["a", "b"], [1, 2, 3], [[1]], {}, {"a": 1}, {"a": "x"}, {"a": 1, "b": "x"}, {"b": "x"},
    {"a": 1, "c": [True]}, {"a": {"a": 1}}, {"x1": 1}, {"x1": "y", "a": 2}, {"a": 1, "b": "x", "c": None},
]  # fmt: skip
SCHEMAS = [
    True,
    {},
    {"type": "integer", "minimum": 0, "exclusiveMaximum": 12},
    {"type": "number", "multipleOf": 0.25},
    {"type": ["string", "null"], "minLength": 1, "maxLength": 2},
    {"type": "string", "pattern": "^[a-z]+$"},
    {"type": "string", "format": "date"},
    {"enum": [1, "a", None, {"a": 1}, [1]]},
    {"const": {"a": 1, "b": "x"}},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False},
    {"type": "object", "patternProperties": {"^x[0-9]$": {"type": "integer"}}, "additionalProperties": False},
    {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 2},
    {"anyOf": [{"type": "integer"}, {"type": "object", "required": ["b"]}]},
    {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]},
    {"allOf": [{"properties": {"a": {"minimum": 1}}}, {"properties": {"b": {"maxLength": 1}}}]},
    {"$defs": {"tree": {"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#/$defs/tree"}, {"const": 1}]}},
     "additionalProperties": False}}, "$ref": "#/$defs/tree"},
]  # fmt: skip


@pytest.fixture(scope="module")
def checker() -> Checker:
    return Checker()


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_values_are_accepted_as_jsonschema_says(checker, schema):
    formats = jsonschema.Draft202012Validator.FORMAT_CHECKER
    grammar, validator = checker.compile(schema), jsonschema.Draft202012Validator(schema, format_checker=formats)
    checks = [(value, checker.accepts(grammar, schema, value), validator.is_valid(value)) for value in VALUES]
    assert not [each for each in checks if each[1] != each[2]]
    assert any(valid for _, _, valid in checks)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"properties": {"a/b": {"not": {}}}}, "keyword #/properties/a~1b/not is not supported"),
        ({"items": {"anyOf": [{"type": "string"}, {"if": {}, "then": {}}]}}, "keyword #/items/anyOf/1/if is not"),
        (
            {"$defs": {"x": {"uniqueItems": True, "type": "array"}}, "$ref": "#/$defs/x"},
            r"#/\$defs/x/uniqueItems is not",
        ),
        ({"properties": {"x": {"format": "date"}, "y": {"format": "shoe"}}}, "#/properties/y/format 'shoe' is not"),
        (
            {"properties": {"x": {"oneOf": [{"const": 1}, {"const": 2}]}, "y": {"oneOf": [{"type": "null"}, {}]}}},
            "#/properties/y/oneOf is supported only where",
        ),
        (
            {"properties": {"x": {"pattern": "^a"}, "y": {"pattern": "(?=a)"}}},
            "#/properties/y/pattern is not a regular",
        ),
        ({"items": {"$ref": "https://example.com/x"}}, r"#/items/\$ref cannot be followed"),
        ({"patternProperties": {"a": {}, "b": {"type": "null"}}}, "#/patternProperties is supported only if"),
        ({"properties": {"a": {}}, "maxProperties": 3}, "#/maxProperties is supported only if"),
        ({"minProperties": 2}, "#/minProperties may be at most one more"),
        ({"properties": {"a": {"type": "strin"}}}, "cannot be followed: Invalid type"),
        ({"type": "object", "x-guidance": {"lenient": True}, "not": {}}, "keyword #/not is not supported"),
        (False, "must be a JSON object, or true, not False"),
    ],
    ids=str,
)
def test_what_is_not_supported_is_refused_with_its_place(checker, schema, words):
    with pytest.raises(UserError, match=words) as told:
        checker.compile(schema)
    assert "\n" not in str(told.value) and str(told.value)[0].isupper()


def test_deep_json_is_refused(checker):
    with pytest.raises(UserError, match=r"not valid JSON|cannot be followed"):
        checker.compile('{"items":' * 100_000 + "{}" + "}" * 100_000)


def test_every_schema_inside_a_schema_is_found():
    schema = {"properties": {"a": {"items": [{"not": {"type": "null"}}]}}, "$defs": {"b": True}, "enum": [{"type": 1}]}
    paths = [path for path, _ in subschemas(schema)]
    assert paths == ["#", "#/properties/a", "#/properties/a/items/0", "#/properties/a/items/0/not"]


@public
def test_maskbench(checker, full_size, capsys):
    """Schemas drawn by a fixed seed: those that are refused are counted, and no instance of the others is wrong."""
    names = sorted(path.name for path in (PUBLIC / "maskbench" / "data").glob("*.json"))
    random.Random(25).shuffle(names)
    refused, right, wrong, schemas = Counter[str](), Counter[str](), [], 0
    for name in names[: 2500 if full_size else 100]:
        case = json.loads((PUBLIC / "maskbench" / "data" / name).read_text())
        schemas += 1
        try:
            grammar = checker.compile(case["schema"])
        except UserError as error:
            found = re.search(r"#\S*?/([^/ ]+)(?= (?:is|may|cannot|'))", str(error))
            refused[found[1] if found else str(error)] += 1
            continue
        for number, each in enumerate(case.get("tests", [])):
            if checker.accepts(grammar, case["schema"], each["data"]) == each["valid"]:
                right["valid" if each["valid"] else "invalid"] += 1
            else:
                wrong.append((name, number, each["valid"]))
    with capsys.disabled():
        print(f"\n{schemas} schemas, {refused.total()} refused: {dict(refused.most_common())}; right: {dict(right)}")
    assert not wrong and refused.total() < 0.2 * schemas


@public
@pytest.mark.parametrize("keyword", CLAIMED)
def test_json_schema_test_suite(checker, keyword):
    for case in json.loads((PUBLIC / "tests" / "draft2020-12" / f"{keyword}.json").read_text()):
        try:
            grammar = checker.compile(case["schema"])
        except UserError:
            continue
        for each in case["tests"]:
            found = checker.accepts(grammar, case["schema"], each["data"])
            assert found == each["valid"], (case["description"], case["schema"], each)
