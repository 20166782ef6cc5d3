from __future__ import annotations

import copy
import inspect
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openenv import errors
from openenv.errors import OpenEnvError, from_wire

CLIENT, ENVIRONMENT, MACHINES = "client", "environment", "infrastructure"

# name: (parent, code, blame, retryable, builtin bases by which programs catch it)
TREE = {
    "OpenEnvError": ("Exception", "SESSION_ERROR", MACHINES, False, ()),
    "UsageError": ("OpenEnvError", "SESSION_ERROR", CLIENT, False, (RuntimeError, ValueError)),
    "InvalidAction": ("UsageError", "VALIDATION_ERROR", CLIENT, False, (RuntimeError, ValueError)),
    "InvalidArgument": ("UsageError", "SESSION_ERROR", CLIENT, False, (RuntimeError, ValueError)),
    "InvalidMessage": ("UsageError", "INVALID_JSON", CLIENT, False, (RuntimeError, ValueError)),
    "UnknownMessage": ("UsageError", "UNKNOWN_TYPE", CLIENT, False, (RuntimeError, ValueError)),
    "UnknownSession": ("UsageError", "SESSION_ERROR", CLIENT, False, (RuntimeError, ValueError)),
    "ResetRequired": ("UsageError", "EXECUTION_ERROR", CLIENT, False, (RuntimeError, ValueError)),
    "SequenceError": ("UsageError", "SESSION_ERROR", CLIENT, False, (RuntimeError, ValueError)),
    "Unauthorized": ("UsageError", "SESSION_ERROR", CLIENT, False, (RuntimeError, ValueError)),
    "Forbidden": ("Unauthorized", "EXECUTION_ERROR", CLIENT, False, (RuntimeError, ValueError)),
    "Hidden": ("Forbidden", "EXECUTION_ERROR", CLIENT, False, (RuntimeError, ValueError)),
    "TooManyFailures": ("Unauthorized", "SESSION_ERROR", CLIENT, False, (RuntimeError, ValueError)),
    "SeedIgnored": ("UsageError", "SESSION_ERROR", CLIENT, False, (RuntimeError, UserWarning, ValueError)),
    "SchemaMismatch": ("UsageError", "SESSION_ERROR", CLIENT, False, (RuntimeError, UserWarning, ValueError)),
    "UnknownEnvironment": ("UsageError", "SESSION_ERROR", CLIENT, False, (RuntimeError, ValueError)),
    "ImportFailed": ("UsageError", "SESSION_ERROR", CLIENT, False, (RuntimeError, ImportError, ValueError)),
    "NotAProject": ("UsageError", "SESSION_ERROR", CLIENT, False, (RuntimeError, ValueError)),
    "UnreadableRecord": ("UsageError", "SESSION_ERROR", CLIENT, False, (RuntimeError, ValueError)),
    "MissingArray": ("UnreadableRecord", "SESSION_ERROR", CLIENT, False, (RuntimeError, ValueError)),
    "MessageTooLarge": ("UsageError", "SESSION_ERROR", CLIENT, False, (RuntimeError, ValueError)),
    "Cancelled": ("UsageError", "EXECUTION_ERROR", CLIENT, False, (RuntimeError, ValueError)),
    "SlowReader": ("UsageError", "SESSION_ERROR", CLIENT, False, (RuntimeError, ValueError)),
    "UnmappableSpace": ("UsageError", "SESSION_ERROR", CLIENT, False, (RuntimeError, ValueError)),
    "TaskTaken": ("UsageError", "SESSION_ERROR", CLIENT, False, (RuntimeError, ValueError)),
    "JournalInUse": ("UsageError", "SESSION_ERROR", CLIENT, False, (RuntimeError, ValueError)),
    "JournalMismatch": ("UsageError", "SESSION_ERROR", CLIENT, False, (RuntimeError, ValueError)),
    "JournalFailed": ("OpenEnvError", "SESSION_ERROR", MACHINES, False, ()),
    "PolicyFailed": ("UsageError", "SESSION_ERROR", CLIENT, False, (RuntimeError, ValueError)),
    "ConcurrencyConfigurationError": ("UsageError", "SESSION_ERROR", CLIENT, False, (RuntimeError, ValueError)),
    "CapacityError": ("OpenEnvError", "CAPACITY_REACHED", MACHINES, True, (RuntimeError,)),
    "ServerFull": ("CapacityError", "CAPACITY_REACHED", MACHINES, True, (RuntimeError,)),
    "QueueTimeout": ("ServerFull", "CAPACITY_REACHED", MACHINES, True, (RuntimeError,)),
    "Draining": ("CapacityError", "CAPACITY_REACHED", MACHINES, True, (RuntimeError,)),
    "TooManyCalls": ("CapacityError", "EXECUTION_ERROR", MACHINES, True, (RuntimeError,)),
    "EnvironmentFailed": ("OpenEnvError", "EXECUTION_ERROR", ENVIRONMENT, False, (RuntimeError,)),
    "SessionCreationError": ("EnvironmentFailed", "EXECUTION_ERROR", ENVIRONMENT, False, (RuntimeError,)),
    "FactoryFailed": ("SessionCreationError", "FACTORY_ERROR", ENVIRONMENT, False, (RuntimeError,)),
    "NotForkable": ("EnvironmentFailed", "EXECUTION_ERROR", ENVIRONMENT, False, (RuntimeError,)),
    "StepFailed": ("EnvironmentFailed", "EXECUTION_ERROR", ENVIRONMENT, False, (RuntimeError,)),
    "RubricFailed": ("StepFailed", "EXECUTION_ERROR", ENVIRONMENT, False, (RuntimeError,)),
    "JudgeFailed": ("RubricFailed", "EXECUTION_ERROR", MACHINES, False, (RuntimeError,)),
    "StepTimeout": ("EnvironmentFailed", "EXECUTION_ERROR", ENVIRONMENT, False, (RuntimeError, TimeoutError)),
    "AgentFailed": ("EnvironmentFailed", "EXECUTION_ERROR", ENVIRONMENT, False, (RuntimeError,)),
    "ToolFailed": ("EnvironmentFailed", "EXECUTION_ERROR", ENVIRONMENT, False, (RuntimeError,)),
    "EnvironmentCrashed": ("EnvironmentFailed", "EXECUTION_ERROR", ENVIRONMENT, False, (RuntimeError,)),
    "ConnectionFailed": ("OpenEnvError", "SESSION_ERROR", MACHINES, True, (ConnectionError,)),
    "ConnectTimeout": ("ConnectionFailed", "SESSION_ERROR", MACHINES, True, (ConnectionError, TimeoutError)),
    "ConnectionLost": ("ConnectionFailed", "SESSION_ERROR", MACHINES, True, (ConnectionError,)),
    "ProtocolViolation": ("ConnectionFailed", "SESSION_ERROR", MACHINES, False, (ConnectionError,)),
    "SessionLost": ("ConnectionFailed", "SESSION_ERROR", MACHINES, False, (ConnectionError,)),
    "ProviderFailed": ("OpenEnvError", "SESSION_ERROR", MACHINES, False, (RuntimeError,)),
    "NotReady": ("ProviderFailed", "SESSION_ERROR", MACHINES, True, (RuntimeError,)),
    "LaunchFailed": ("ProviderFailed", "SESSION_ERROR", MACHINES, False, (RuntimeError,)),
    "ProviderBusy": ("LaunchFailed", "SESSION_ERROR", MACHINES, True, (RuntimeError,)),
    "MissingExtra": ("ProviderFailed", "SESSION_ERROR", CLIENT, False, (RuntimeError, ImportError)),
    "ModelFailed": ("OpenEnvError", "SESSION_ERROR", MACHINES, False, (RuntimeError,)),
    "ModelUnavailable": ("ModelFailed", "SESSION_ERROR", MACHINES, True, (RuntimeError,)),
    "ContextOverflow": ("ModelFailed", "SESSION_ERROR", CLIENT, False, (RuntimeError,)),
    "ModelTimeout": ("ModelUnavailable", "SESSION_ERROR", MACHINES, True, (RuntimeError, TimeoutError)),
}

# Those whose constructor takes facts and makes a message of them.
MADE_OF_FACTS = {
    "ToolFailed": lambda: errors.ToolFailed("add", "invalid_args", "it takes a"),
    "UnknownSession": lambda: errors.UnknownSession("s-1"),
    "ConcurrencyConfigurationError": lambda: errors.ConcurrencyConfigurationError("Chess", 8),
    "ServerFull": lambda: errors.ServerFull(8, 9, retry_after_s=1.5),
    "QueueTimeout": lambda: errors.QueueTimeout(9, 9),
    "EnvironmentCrashed": lambda: errors.EnvironmentCrashed("it is gone", signal="SIGSEGV", stderr="a trace"),
    "SessionCreationError": lambda: errors.SessionCreationError("no memory"),
    "FactoryFailed": lambda: errors.FactoryFailed("Chess"),
    "MissingExtra": lambda: errors.MissingExtra("gymnasium", "gymnasium"),
    "ModelFailed": lambda: errors.ModelFailed("it broke", status=400),
    "ModelUnavailable": lambda: errors.ModelUnavailable("it is busy", status=429, retry_after_s=2.0),
    "ContextOverflow": lambda: errors.ContextOverflow("it is full", status=400),
    "ModelTimeout": lambda: errors.ModelTimeout("it was late"),
}


def example(name):
    """One error of a class, with everything it can carry."""
    if name in MADE_OF_FACTS:
        return MADE_OF_FACTS[name]()
    return getattr(errors, name)("it broke", retry_after_s=2.0, data={"errors": [{"loc": ["x"]}]})


def on_the_wire(error):
    """The `data` object of the error's frame, after a journey as JSON."""
    return json.loads(json.dumps({**error.data, **error.facts()}))


def test_the_tree_has_no_class_that_is_not_in_the_table():
    classes = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, OpenEnvError) and value.__name__ == name
    }
    assert classes == set(TREE)


def test_all_is_sorted_and_complete():
    assert errors.__all__ == sorted(errors.__all__)
    aliases = {"EnvironmentFactoryError", "SessionCapacityError", "SessionNotFoundError"}
    assert set(errors.__all__) == set(TREE) | aliases | {"from_wire"}


@pytest.mark.parametrize("name", TREE)
def test_class(name):
    parent, code, blame, retryable, bases = TREE[name]
    cls = getattr(errors, name)
    assert cls.__mro__[1].__name__ == parent
    assert (cls.code, cls.blame, cls.retryable) == (code, blame, retryable)
    for base in bases:
        assert issubclass(cls, base)
    assert cls.__doc__


@pytest.mark.parametrize("name", TREE)
def test_no_class_is_caught_by_a_builtin_name_that_does_not_fit(name):
    caught = {
        base
        for base in (RuntimeError, ConnectionError, TimeoutError, ImportError, ValueError, UserWarning)
        if issubclass(getattr(errors, name), base)
    }
    assert caught == set(TREE[name][4])


def test_the_names_that_existing_code_catches_are_the_same_classes():
    assert errors.SessionCapacityError is errors.ServerFull
    assert errors.SessionNotFoundError is errors.UnknownSession
    assert errors.EnvironmentFactoryError is errors.FactoryFailed


@pytest.mark.parametrize("name", TREE)
def test_facts(name):
    error = example(name)
    facts = error.facts()
    assert facts["message"] == error.message != ""
    assert str(error).startswith(error.message)
    assert facts["error"] == name
    assert (facts["code"], facts["blame"], facts["retryable"]) == (error.code, error.blame, error.retryable)
    if error.retry_after_s is None:
        assert "retry_after_s" not in facts
    else:
        assert facts["retry_after_s"] == error.retry_after_s


def test_the_data_of_an_error_is_its_own():
    given_data = {"errors": []}
    error = OpenEnvError("x", data=given_data)
    error.data["more"] = 1
    assert given_data == {"errors": []}
    assert OpenEnvError("y").data == {}


@pytest.mark.parametrize("name", TREE)
@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_a_copy_says_the_same(name, copied):
    error = example(name)
    error.add_note("seen by worker 3")
    twin = copied(error)
    assert type(twin) is type(error)
    assert str(twin) == str(error)
    assert twin.__dict__ == error.__dict__
    assert twin.__notes__ == ["seen by worker 3"]


@pytest.mark.parametrize("name", TREE)
def test_from_wire_gives_the_class_that_was_sent(name):
    error = example(name)
    received = from_wire(on_the_wire(error))
    assert type(received) is type(error)
    assert str(received) == str(error)
    assert received.message == error.message
    assert received.data == error.data
    assert received.retry_after_s == error.retry_after_s
    with pytest.raises(type(error)):
        raise received


@pytest.mark.parametrize("name", MADE_OF_FACTS)
def test_from_wire_gives_back_every_attribute(name):
    error = example(name)
    received = from_wire(on_the_wire(error))
    for attribute in vars(error):
        assert getattr(received, attribute) == getattr(error, attribute)


def test_from_wire_survives_a_second_journey():
    error = from_wire(on_the_wire(errors.ServerFull(3, 4)))
    again = pickle.loads(pickle.dumps(from_wire(on_the_wire(error))))
    assert (type(again), again.active_sessions, again.max_sessions) == (errors.ServerFull, 3, 4)


@pytest.mark.parametrize(
    ("code", "cls"),
    [
        ("INVALID_JSON", errors.InvalidMessage),
        ("UNKNOWN_TYPE", errors.UnknownMessage),
        ("VALIDATION_ERROR", errors.InvalidAction),
        ("EXECUTION_ERROR", errors.StepFailed),
        ("CAPACITY_REACHED", errors.ServerFull),
        ("FACTORY_ERROR", errors.FactoryFailed),
        ("SESSION_ERROR", errors.SessionLost),
        ("BRAND_NEW", OpenEnvError),
        (None, OpenEnvError),
        (["EXECUTION_ERROR"], OpenEnvError),
    ],
)
def test_from_wire_of_a_server_that_names_no_class(code, cls):
    error = from_wire({"message": "broken", "code": code})
    assert type(error) is cls
    assert error.message == "broken"
    assert error.data == {}
    assert error.facts()["error"] == cls.__name__


def test_from_wire_keeps_the_facts_of_a_foreign_capacity_error():
    error = from_wire({"message": "full", "code": "CAPACITY_REACHED", "active_sessions": 1, "max_sessions": 2})
    assert (error.active_sessions, error.max_sessions) == (1, 2)


def test_the_attributes_are_there_when_the_server_says_nothing_of_them():
    full = from_wire({"code": "CAPACITY_REACHED"})
    assert (full.active_sessions, full.max_sessions, full.message) == (0, 0, "")
    assert from_wire({"code": "FACTORY_ERROR"}).factory_name == ""
    assert from_wire({"error": "UnknownSession"}).session_id == ""


@pytest.mark.parametrize("pause", ["soon", -1.0, float("nan"), float("inf"), True, [], {}])
def test_a_pause_that_is_none(pause):
    assert from_wire({"error": "ServerFull", "retry_after_s": pause}).retry_after_s is None


def test_attributes_of_other_types_than_theirs_stay_in_the_data():
    crash = from_wire({"error": "EnvironmentCrashed", "exit_code": {}, "signal": 9, "stderr": None})
    assert (crash.exit_code, crash.signal) == (None, None)
    assert crash.data["exit_code"] == {}
    full = from_wire({"error": "ServerFull", "active_sessions": "1", "max_sessions": True})
    assert (full.active_sessions, full.max_sessions) == (0, 0)


@pytest.mark.parametrize(
    "name", ["Any", "Mapping", "from_wire", "__builtins__", "_BY_CODE", "Blame", "RuntimeError", ""]
)
def test_from_wire_makes_nothing_but_errors_of_this_tree(name):
    assert type(from_wire({"error": name, "code": "EXECUTION_ERROR"})) is errors.StepFailed


def test_from_wire_takes_the_old_names_too():
    assert type(from_wire({"error": "SessionCapacityError"})) is errors.ServerFull


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
frame_keys = st.sampled_from(
    ["message", "code", "error", "blame", "retryable", "retry_after_s", "active_sessions", "factory_name", "errors"]
)
names = st.sampled_from([*TREE, "EXECUTION_ERROR", "SESSION_ERROR", "FACTORY_ERROR"])


@pytest.mark.slow
@given(st.dictionaries(frame_keys | st.text(max_size=5), json_values | names, max_size=6))
def test_from_wire_never_raises(data):
    error = from_wire(data)
    assert isinstance(error, OpenEnvError)
    assert error.facts()["error"] == type(error).__name__
    assert isinstance(error.message, str)
    assert isinstance(str(error), str)


class TestInvalidAction:
    def test_it_prints_each_fault_with_its_place(self):
        faults = [{"loc": ["path", 1], "msg": "not a number"}, {"loc": [], "msg": "too many"}]
        error = errors.InvalidAction("Invalid message", data={"errors": faults})
        assert str(error) == "Invalid message; path.1: not a number; -: too many"
        assert error.message == "Invalid message"

    def test_without_faults_it_prints_its_message(self):
        assert str(errors.InvalidAction("no such column")) == "no such column"

    @given(json_values)
    def test_it_prints_whatever_a_foreign_server_sends(self, faults):
        error = from_wire({"message": "Invalid message", "code": "VALIDATION_ERROR", "errors": faults})
        assert str(error).startswith("Invalid message")

    @pytest.mark.slow
    @given(st.lists(st.fixed_dictionaries({}, optional={"loc": json_values, "msg": json_values})))
    def test_it_prints_faults_that_are_nearly_right(self, faults):
        error = from_wire({"message": "Invalid message", "code": "VALIDATION_ERROR", "errors": faults})
        assert str(error).startswith("Invalid message")


@pytest.mark.parametrize(
    ("error", "attributes"),
    [
        (errors.ConcurrencyConfigurationError("Chess", 3), {"environment_name": "Chess", "max_concurrent_envs": 3}),
        (errors.SessionCapacityError(2, max_sessions=3), {"active_sessions": 2, "max_sessions": 3}),
        (errors.SessionNotFoundError(session_id="s-1"), {"session_id": "s-1"}),
        (errors.SessionCreationError(reason="no memory"), {"reason": "no memory"}),
        (errors.EnvironmentFactoryError(factory_name="Chess"), {"factory_name": "Chess"}),
    ],
)
def test_what_existing_code_makes_and_reads(error, attributes):
    assert {name: getattr(error, name) for name in attributes} == attributes
    assert str(next(iter(attributes.values()))) in str(error)


def test_messages_say_what_to_do():
    assert "3 of 3" in str(errors.ServerFull(3, 3))
    assert "OPENENV_MAX_SESSIONS" in str(errors.ServerFull(3, 3))
    assert "SUPPORTS_CONCURRENT_SESSIONS" in str(errors.ConcurrencyConfigurationError("Chess", 8))
    assert "pip install 'openenv[gymnasium]'" in str(errors.MissingExtra("gymnasium", "gymnasium"))
    assert "Chess" in str(errors.FactoryFailed("Chess"))
    assert "'s-1'" in str(errors.UnknownSession("s-1"))


@pytest.mark.parametrize(
    "error",
    [
        errors.ServerFull(1, 1, "own words"),
        errors.UnknownSession("s", "own words"),
        errors.FactoryFailed("Chess", "own words"),
        errors.SessionCreationError("no memory", message="own words"),
        errors.ConcurrencyConfigurationError("Chess", 2, "own words"),
    ],
)
def test_a_message_of_ones_own_stands(error):
    assert str(error) == "own words"
