"""Headers that say how long an answer is waited for: their forms, and what cannot be meant."""

from __future__ import annotations

import math
from typing import Any

import pytest

from agent_hedge import Hedger
from agent_hedge.core.step import Attempt, Role
from agent_hedge.errors import ConfigurationError
from agent_hedge.targets import DeadlineHeaders
from agent_hedge.testing.fakes import place

WALL = 1_767_268_800.0
"""2026-01-01T12:00 UTC."""


def said(form: str, left: float) -> str:
    headers = DeadlineHeaders({"X-Deadline": form}, lambda: 100.0, wall=lambda: WALL)
    attempt = Attempt(0, Role.PRIMARY, place("a"), 100.0, 100.0 + left, None, 1)
    return headers(attempt)["X-Deadline"]


@pytest.mark.parametrize(
    ("form", "left", "text"),
    [
        ("grpc", 1.5, "1500m"),
        ("grpc", -3.0, "0m"),
        ("grpc", 99_999.999, "99999999m"),
        ("grpc", 100_000.0, "100000S"),
        ("grpc", 1e12, "99999999S"),
        ("seconds", 1.5, "1.500"),
        ("milliseconds", 1.5, "1500"),
        ("epoch", 1.5, f"{WALL + 1.5:.3f}"),
        ("iso", 1.5, "2026-01-01T12:00:01.500+00:00"),
    ],
)
def test_r12_what_is_left_is_said_in_the_form_asked_for(form: str, left: float, text: str) -> None:
    assert said(form, left) == text


def test_without_a_deadline_nothing_is_said_of_one_and_other_headers_are_kept() -> None:
    headers = DeadlineHeaders({"X-Deadline": "seconds"}, lambda: 0.0, also=lambda _: {"traceparent": "00-x"})
    endless = Attempt(0, Role.PRIMARY, place("a"), 0.0, math.inf, None, 1)
    assert headers(endless) == {"traceparent": "00-x"}
    assert headers(Attempt(0, Role.HEDGE, place("a"), 0.0, 2.0, None, 1)) == {
        "traceparent": "00-x",
        "X-Deadline": "2.000",
    }


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("grpc-timeout", "must map headers to forms"),
        ({"grpc-timeout": "hours"}, "must be one of grpc, seconds"),
        ({"grpc-timeout": ["grpc"]}, "must be one of grpc, seconds"),
        ({"bad header\n": "grpc"}, "is no name of a header"),
        ({1: "grpc"}, "is no name of a header"),
    ],
)
def test_r20_what_cannot_be_meant(given: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Hedger(deadline_headers=given)
