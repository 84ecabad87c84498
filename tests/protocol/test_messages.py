"""Every message between actors survives the journey to another process."""

import inspect
import types
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct, structs

from protocol import clocks, kinds, messages, requests, resuming, sockets, steps, tokens, watching
from protocol.messages import FromWorker, ToWorker
from protocol.responses import ResponseCreate

SUBJECTS = (clocks, kinds, requests, resuming, sockets, steps, tokens, watching)
CLASSES = sorted(
    {
        each
        for subject in SUBJECTS
        for _, each in inspect.getmembers(subject, inspect.isclass)
        if issubclass(each, Struct) and each is not Struct and not each.__name__.startswith("_")
    },
    key=lambda each: each.__name__,
)
"""Every message, and what messages are made of."""
SIMPLE: dict[object, st.SearchStrategy[Any]] = {
    str: st.text(max_size=8),
    bytes: st.binary(max_size=8),
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    type(None): st.none(),
}


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of a type that messages use. A new kind of type has to be added here, so that it is looked at."""
    if annotation in SIMPLE:
        return SIMPLE[annotation]
    if inspect.isclass(annotation) and issubclass(annotation, Struct):
        fields = {field.name: values(field.type) for field in structs.fields(annotation)}
        return st.builds(annotation, **fields)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, types.UnionType):
        return st.one_of(*(values(each) for each in arguments))
    if origin is dict:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=3)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*(values(each) for each in arguments))
    raise TypeError(f"no values for {annotation}")


def test_the_messages_are_found() -> None:
    assert {messages.Ask, messages.Enqueue, messages.Text, ResponseCreate} <= set(CLASSES)
    assert len(CLASSES) > 40


def test_the_catalogue_lists_every_message_once() -> None:
    told = {each.__name__ for each in CLASSES if each.__module__ in {subject.__name__ for subject in SUBJECTS}}
    listed = {name for name in messages.__all__ if inspect.isclass(getattr(messages, name))}
    assert listed == told | {"RequestId", "ConnectionId"}
    assert len(messages.__all__) == len(set(messages.__all__))
    assert {subject.__name__ for subject in SUBJECTS} == {getattr(messages, name).__module__ for name in told}


@pytest.mark.parametrize("message_class", CLASSES)
@settings(max_examples=25)
@given(data=st.data())
def test_every_message_can_be_encoded_and_decoded(message_class: type[Struct], data: st.DataObject) -> None:
    message = data.draw(values(message_class))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=message_class) == message


@pytest.mark.parametrize("pipe", [FromWorker, ToWorker])
@settings(max_examples=25)
@given(data=st.data())
def test_the_pipe_tells_its_messages_apart(pipe: Any, data: st.DataObject) -> None:
    message = data.draw(values(pipe))
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=pipe)
    assert type(decoded) is type(message)
    assert decoded == message
