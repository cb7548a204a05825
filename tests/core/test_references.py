"""K1: the one parser of the annotation, and the position in every error."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.core.model.references import (
    MAX_CHARACTERS,
    MAX_COUNT,
    MAX_REFERENCES,
    DeviceReference,
    ReferencesError,
    TemplateReference,
    parse_references,
)
from reconciler.core.model.vocabulary import DEVICES_ANNOTATION, Reason


def test_k1_reads_both_forms_in_order():
    text = '[{"device":"train-a"},{"template":{"className":"a100","count":2}},{"template":{"className":"l4"}}]'
    assert parse_references(text) == (
        DeviceReference("train-a"),
        TemplateReference("a100", 2),
        TemplateReference("l4", 1),
    )


def test_k1_two_equal_templates_are_two_devices():
    text = '[{"template":{"className":"a100","count":1}},{"template":{"className":"a100","count":1}}]'
    assert len(parse_references(text)) == 2


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", "line 1, column 1"),
        ('[{"device":"a"}\n{"device":"b"}]', "line 2, column 1"),
        ("NaN", "must be a JSON list"),
        ('[{"device":"a"},NaN]', "item 1: must be an object, not NaN"),
        (
            '[{"template":{"className":"c","count":-Infinity}}]',
            "item 0, template, count: must be a whole number, not -I",
        ),
        ("[" * 20_000, "nested too deeply"),
        ("[" + "9" * 5000 + "]", "item 0: must be an object, not a number"),
        ('[{"template":{"className":"c","count":' + "9" * 5000 + "}}]", "item 0, template, count: must be from 1 to"),
        ("{}", "not an object"),
        ("null", "not null"),
        ('"train-a"', "not a text"),
        ('["train-a"]', "item 0: must be an object, not a text"),
        ('[{"device":"a"},{}]', "item 1: must have exactly one of the keys"),
        ('[{"device":"a","template":{"className":"c"}}]', "item 0: must have exactly one"),
        ('[{"devise":"a"}]', "it has 'devise'"),
        ('[{"device":"a","device":"b"}]', "item 0: key 'device' stands twice"),
        ('[{"device":"A_1"}]', "item 0, device: 'A_1' is no object name"),
        ('[{"device":""}]', "item 0, device"),
        ('[{"device":"a\\n"}]', "item 0, device"),
        ('[{"device":"' + "a" * 254 + '"}]', "at most 253"),
        ('[{"device":7}]', "item 0, device: must be a name, not a number"),
        ('[{"template":"a100"}]', "item 0, template: must be an object"),
        ('[{"template":{"count":1}}]', '"className" is missing'),
        ('[{"template":{"className":"c","cout":4}}]', "unknown key 'cout'"),
        ('[{"template":{"className":"c","count":0}}]', f"from 1 to {MAX_COUNT}"),
        ('[{"template":{"className":"c","count":-1}}]', "item 0, template, count"),
        ('[{"template":{"className":"c","count":99999999999}}]', f"from 1 to {MAX_COUNT}"),
        ('[{"template":{"className":"c","count":true}}]', "must be a whole number, not true"),
        ('[{"template":{"className":"c","count":1.0}}]', "must be a whole number, not a fraction"),
        ('[{"template":{"className":"c","count":"1"}}]', "must be a whole number, not a text"),
        (json.dumps([{"template": {"className": "c"}}] * (MAX_REFERENCES + 1)), f"at most {MAX_REFERENCES}"),
        (" " * MAX_CHARACTERS + "[]", "longer than"),
    ],
)
def test_k1_malformed_annotation_is_refused_with_its_position(text, position):
    with pytest.raises(ReferencesError) as caught:
        parse_references(text)
    assert caught.value.reason is Reason.MALFORMED_REFERENCES
    assert position in str(caught.value)
    assert DEVICES_ANNOTATION in str(caught.value)


def test_k1_an_empty_list_refers_to_nothing():
    with pytest.raises(ReferencesError) as caught:
        parse_references("[]")
    assert caught.value.reason is Reason.MISSING_REFERENCES


def test_k1_a_device_named_twice_is_refused_with_both_positions():
    with pytest.raises(ReferencesError) as caught:
        parse_references('[{"device":"a"},{"template":{"className":"c"}},{"device":"a"}]')
    assert caught.value.reason is Reason.DUPLICATE_REFERENCE
    assert "items 0 and 2" in str(caught.value)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["device", "template", "className", "count", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.text(max_size=40) | _json.map(json.dumps))
def test_k1_no_text_does_anything_but_parse_or_be_refused(text):
    try:
        references = parse_references(text)
    except ReferencesError:
        return
    assert references
    assert all(isinstance(found, DeviceReference | TemplateReference) for found in references)
