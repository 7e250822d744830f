"""XML that strangers wrote is read or refused, never obeyed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkbound.errors import InputError
from linkbound.topology.xml import (
    MAX_BYTES,
    MAX_DEPTH,
    XmlCutOff,
    load_xml,
    load_xml_start,
)

LAUGHS = '<!DOCTYPE a [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]><system>&b;</system>'
OUTSIDE = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/hostname">]><system>&x;</system>'


@pytest.mark.parametrize("text", [LAUGHS, OUTSIDE])
@pytest.mark.parametrize("load", [load_xml, load_xml_start])
def test_own_dtd_is_refused(load: object, text: str) -> None:
    with pytest.raises(InputError, match="declares its own DTD"):
        load(text, "a.xml")  # type: ignore[operator]


def test_named_dtd_is_never_fetched() -> None:
    root = load_xml('<!DOCTYPE topology SYSTEM "http://192.0.2.1/hwloc2.dtd"><topology/>', "a")
    assert root.tag == "topology"


def test_depth() -> None:
    deep = "<a>" * MAX_DEPTH + "</a>" * MAX_DEPTH
    assert load_xml(deep, "a").tag == "a"
    with pytest.raises(InputError, match="deeper than 200"):
        load_xml(f"<a>{deep}</a>", "a")


def test_size() -> None:
    with pytest.raises(InputError, match="67,108,865 bytes of XML"):
        load_xml(b" " * (MAX_BYTES + 1), "a")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x01\x02",
        b"\xff\xfe<\x00a",
        b"<?xml version='1.0' encoding='no-such'?><a/>",
        b"<?xml version='1.0' encoding='utf-7'?><a/>",
        "<a>\ud800</a>",
        "<a>&undeclared;</a>",
        "<a/><b/>",
        "<a",
        "plain text",
    ],
)
def test_what_is_not_xml(data: bytes | str) -> None:
    with pytest.raises(InputError) as error:
        load_xml(data, "strange.xml")
    assert error.value.seen.startswith("strange.xml: ")


def test_cut_is_told_apart() -> None:
    with pytest.raises(XmlCutOff, match="fragment"):
        load_xml("<a><b/>", "a")
    start = load_xml_start("<a><b/><c><d/>", "a")
    assert [child.tag for child in start.root] == ["b", "c"]
    assert [element.tag for element in start.unfinished] == ["a", "c"]
    assert start.cut is not None
    whole = load_xml_start("<a><b/></a>", "a")
    assert (whole.cut, whole.unfinished) == (None, ())


def test_declared_encoding_of_decoded_text_is_ignored() -> None:
    assert load_xml("<?xml version='1.0' encoding='UTF-16'?><a n='é'/>", "a").get("n") == "é"


@given(st.one_of(st.binary(), st.text(), st.text().map(lambda text: f"<a>{text}</a>")))
def test_only_our_error(data: bytes | str) -> None:
    for load in (load_xml, load_xml_start):
        try:
            load(data, "a")
        except InputError:
            continue
