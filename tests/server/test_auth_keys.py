from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from openenv.errors import UsageError
from openenv.server.auth import FailedKeyLimiter, Keyring, Right, Scope, allows, is_tool_call
from openenv.types import Action


def test_a_key_has_its_scope_and_its_number():
    ring = Keyring.parse("control:first,agent:second key, view:drei-ß-Ω ,alone")
    assert ring.find(b"first") == (Scope.CONTROL, 1)
    assert ring.find(b"second key") == (Scope.AGENT, 2)
    assert ring.find("drei-ß-Ω".encode()) == (Scope.VIEW, 3)
    assert ring.find(b"alone") == (Scope.CONTROL, 4)
    assert not ring.open


@pytest.mark.parametrize(
    "wrong", ["", "firs", "first ", "firstfirst", "control:first", "FIRST", "x" * 100_000, "ß", "\0"]
)
def test_what_is_no_key_is_none(wrong):
    assert Keyring.parse("first,agent:second").find(wrong.encode()) is None


def test_bytes_that_are_no_text_are_no_key():
    assert Keyring.parse("first").find(b"\xff\xfe") is None


@pytest.mark.parametrize("text", [None, "none", " none "])
def test_without_keys_none_is_asked_for(text):
    ring = Keyring.parse(text)
    assert ring.open
    assert ring.find(b"none") is None


def test_a_key_may_hold_colons_behind_its_scope():
    assert Keyring.parse("agent:a:b").find(b"a:b") == (Scope.AGENT, 1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "contains no key"),
        (" , ", "contains no key"),
        ("agent:", "entry 1 has no key"),
        ("ok,boss:hidden", "entry 2 is not one of control, agent, view"),
        ("hidden,none", "entry 2 is 'none'"),
        ("hidden,agent:hidden", "entry 2 repeats"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_shows_no_key(text, reason):
    with pytest.raises(UsageError) as raised:
        Keyring.parse(text)
    assert reason in raised.value.message
    assert "OPENENV_API_KEYS" in raised.value.message
    assert "hidden" not in raised.value.message


def test_keys_that_can_be_guessed_are_known_by_number():
    assert Keyring.parse(f"short,agent:{'x' * 16},view:{'y' * 15}").short == [1, 3]


def test_a_keyring_does_not_show_its_keys():
    ring = Keyring.parse("agent:very-secret-key")
    assert "very-secret" not in repr(ring) + str([getattr(ring, name) for name in ring.__slots__])


def test_what_scopes_allow():
    assert all(allows(Scope.CONTROL, right) for right in Right)
    assert {right for right in Right if allows(Scope.AGENT, right)} == {Right.READ, Right.CONNECT, Right.TOOLS}
    assert {right for right in Right if allows(Scope.VIEW, right)} == {Right.READ, Right.WATCH}


class Plain(Action):
    kind: str = ""


class Tool(Action):
    type: Literal["call_tool", "list_tools", "move"]


class Loose(Action):
    model_config = {"extra": "allow"}


@dataclass
class Record:
    type: str


@pytest.mark.parametrize(
    ("action", "is_one"),
    [
        (Tool(type="call_tool"), True),
        (Tool(type="list_tools"), True),
        (Tool(type="move"), False),
        (Plain(kind="call_tool"), False),
        (Loose.model_validate({"type": "call_tool"}), False),
        ({"type": "call_tool"}, True),
        ({"type": ["call_tool"]}, False),
        ({}, False),
        (Record("list_tools"), True),
        (Record("reset"), False),
        (5, False),
        (None, False),
    ],
)
def test_a_tool_call_is_known_by_the_type_that_its_class_declares(action, is_one):
    assert is_tool_call(action) is is_one


def test_the_first_failures_of_a_minute_are_free():
    book = FailedKeyLimiter(3)
    assert [book.failed("192.0.2.1", now) for now in (0, 10, 20)] == [None, None, None]
    assert book.failed("192.0.2.1", 25) == 35
    assert book.failed("192.0.2.1", 59.5) == 0.5
    assert book.failed("192.0.2.2", 25) is None
    assert book.failed("192.0.2.1", 60) is None


def test_waiting_begins_with_the_first_failure_and_is_not_made_longer():
    book = FailedKeyLimiter(1)
    book.failed("a", 0)
    assert [book.failed("a", now) for now in (1, 30, 59)] == [59, 30, 1]
    assert book.failed("a", 61) is None


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first():
    book = FailedKeyLimiter(1, most=3)
    for number in range(10):
        book.failed(f"192.0.2.{number}", number)
    assert len(book) == 3
    assert book.failed("192.0.2.9", 10) is not None
    assert book.failed("192.0.2.0", 10) is None


def test_one_subscriber_of_ipv6_is_one_address():
    book = FailedKeyLimiter(1)
    book.failed("2001:db8::1", 0)
    assert book.failed("2001:db8::ffff:1", 1) is not None
    assert book.failed("2001:db8:0:1::1", 1) is None
    book.failed("::ffff:192.0.2.7", 1)
    assert book.failed("192.0.2.7", 2) is not None
    assert book.failed("::ffff:192.0.2.8", 2) is None


def test_an_address_that_is_none_counts_as_it_is_written():
    book = FailedKeyLimiter(1)
    assert book.failed("testclient", 0) is None
    assert book.failed("testclient", 0) is not None
