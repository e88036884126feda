"""A key set in a JSON text: what changes, and that nothing else does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrole.checkpoint.config_text import with_key


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '{\n  "a": 1.50,\n  "b": "x"\n}\n',
            '{\n  "a": 1.50,\n  "b": "x",\n  "q": {\n    "v": 2\n  }\n}\n',
        ),
        ('{"a": 1}', '{"a": 1, "q": {"v": 2}}'),
        ("{}\n", '{\n  "q": {\n    "v": 2\n  }\n}\n'),
        (
            '{\n    "q": {"old": [1, "}"]},\n    "z": null\n}',
            '{\n    "q": {\n        "v": 2\n    },\n    "z": null\n}',
        ),
        ('{\n\t"a": {"q": 1}\n}', '{\n\t"a": {"q": 1},\n\t"q": {\n\t "v": 2\n\t}\n}'),
    ],
)
def test_the_rest_of_the_text_stays(text: str, expected: str) -> None:
    assert with_key(text, "q", {"v": 2}) == expected


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(ValueError, match="no JSON object"):
        with_key("[1]", "q", 1)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), VALUES, max_size=5), st.sampled_from([None, 1, 2, 4, "\t"]))
def test_the_result_parses_to_the_object_with_the_key(content: Any, indent: Any) -> None:
    text = json.dumps(content, indent=indent)
    assert json.loads(with_key(text, "q", {"v": [1]})) == content | {"q": {"v": [1]}}
