"""The errors as values: what they say, and that they survive a copy and the way to another process."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from agent_hedge.errors import AllAttemptsFailed, DeadlineExceeded, EffectInDoubt, HedgeError, NotDispatched

ERRORS = [
    HedgeError("it broke", hint=3),
    DeadlineExceeded(elapsed=1.5, running=["east#0", "west#1"]),
    AllAttemptsFailed([ConnectionError("east"), TimeoutError("west")]),
    EffectInDoubt("who knows", key="k" * 64, tool="pay", owner="o", age=2.0),
    NotDispatched(),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_survives_a_copy_and_a_pickle(error: HedgeError, again: Callable[[Any], Any]) -> None:
    error.add_note("seen in the night")
    other = again(error)
    assert type(other) is type(error)
    assert (str(other), repr(other)) == (str(error), repr(error))
    assert vars(other) == vars(error)


def test_the_message_is_the_docstring_where_none_is_given() -> None:
    assert str(NotDispatched()) == "No attempt could be dispatched: no place to go, or every place refused."


def test_the_group_shows_what_it_holds_and_can_be_split() -> None:
    east, west = ConnectionError("east"), TimeoutError("west")
    group = AllAttemptsFailed([east, west])
    assert str(group) == "all 2 attempts failed (2 sub-exceptions)"
    assert repr(group) == "AllAttemptsFailed('all 2 attempts failed', (ConnectionError('east'), TimeoutError('west')))"
    matched, rest = group.split(TimeoutError)
    assert matched is not None
    assert rest is not None
    assert (matched.exceptions, rest.exceptions) == ((west,), (east,))
    assert isinstance(rest, AllAttemptsFailed)
