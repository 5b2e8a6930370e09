"""Targets: failure domains, copies, replicas; everything that cannot be meant is an error that names it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from agent_hedge.errors import ConfigurationError
from agent_hedge.targets import Copy, Target, as_targets, places


class Client:
    def __init__(self, base_url: str, model: str = "") -> None:
        self.base_url = base_url
        self.model = model


def test_a_target_alone_is_a_failure_domain_of_its_own() -> None:
    target = Target("us-east", 7)
    assert (target.name, target.member, target.domain) == ("us-east", 7, ("us-east",))
    assert target.places() == (target,)


@pytest.mark.parametrize(
    ("parts", "domain"),
    [
        ({"provider": "openai"}, ("openai", "a")),
        ({"provider": "openai", "region": "us"}, ("openai", "us", "a")),
        ({"region": "us", "cluster": "c1"}, ("us", "c1", "a")),
        ({"provider": "p", "region": "r", "cluster": "c", "replica": "x"}, ("p", "r", "c", "x")),
        ({"replica": "x"}, ("x",)),
    ],
)
def test_the_domain_is_the_path_of_the_parts_given(parts: dict[str, str], domain: tuple[str, ...]) -> None:
    assert Target("a", None, **parts).domain == domain  # type: ignore[arg-type]


def test_a_domain_may_be_given_whole() -> None:
    assert Target("a", None, domain=("dc", "rack", "host")).domain == ("dc", "rack", "host")


def test_copies_share_name_and_member_and_differ_in_the_last_level() -> None:
    pool = Target("pool", "client", provider="p", copies=3)
    copies = pool.places()
    assert [copy.name for copy in copies] == ["pool"] * 3
    assert [copy.member for copy in copies] == ["client"] * 3
    assert [copy.domain for copy in copies] == [("p", "pool", "1"), ("p", "pool", "2"), ("p", "pool", "3")]
    assert all(isinstance(copy, Copy) and copy.target is pool for copy in copies)


def test_targets_hold_anything_and_are_equal_only_to_themselves() -> None:
    member: list[int] = []
    a, b = Target("a", member), Target("a", member)
    assert a != b
    assert len({a, b, *a.places()}) == 2
    with pytest.raises(AttributeError):
        a.name = "b"  # type: ignore[misc]


def test_price_is_per_million_tokens_and_cached_input_costs_full_unless_said() -> None:
    assert Target("a", None, price={"input": 2, "output": 8}).price == {"input": 2, "cached_input": 2, "output": 8}
    assert Target("a", None, price={"input": 2, "cached_input": 0.2}).price == {
        "input": 2,
        "cached_input": 0.2,
        "output": 0,
    }


# --- replicas ---------------------------------------------------------------------------------------------------------


def test_replicas_are_named_by_host_and_port_and_share_a_cluster() -> None:
    urls = ["http://10.0.0.1:8000/v1", "http://10.0.0.2:8000/v1", "https://[::1]:8000/v1", "https://llm.example/v1"]
    targets = Target.replicas(urls, Client, model="m")
    assert [target.name for target in targets] == ["10.0.0.1:8000", "10.0.0.2:8000", "[::1]:8000", "llm.example"]
    assert [target.member.base_url for target in targets] == urls
    assert {target.member.model for target in targets} == {"m"}
    assert {target.domain[:-1] for target in targets} == {("10.0.0.1:8000+3",)}
    assert len({target.domain for target in targets}) == 4


def test_replicas_on_one_host_are_told_apart_by_their_path() -> None:
    targets = Target.replicas(["http://gw/one/v1/", "http://gw/two/v1"], Client)
    assert [target.name for target in targets] == ["gw/one/v1", "gw/two/v1"]


def test_r18_no_secret_of_a_url_enters_a_name_or_an_error() -> None:
    (target,) = Target.replicas(["http://me:hunter2@host:1/v1?key=hunter2"], Client)
    assert target.name == "host:1"
    assert target.domain == ("host:1", "host:1")
    for bad in ("ftp://me:hunter2@host/v1?key=hunter2", "http://me:hunter2@host:99999/?key=hunter2"):
        with pytest.raises(ConfigurationError) as error:
            Target.replicas([bad], Client)
        assert "hunter2" not in str(error.value)
        assert "host" in str(error.value)


@pytest.mark.parametrize(
    ("urls", "message"),
    [
        ([], "at least one URL is needed"),
        ("http://a", "must be a list of URLs"),
        (["localhost:8000"], "http://host:port/path.*localhost:8000"),
        (["unix:///tmp/x"], "http://host:port/path.*unix"),
        (["http://"], "http://host:port/path"),
        (["http://a:port/"], "cannot be read.*http://a:port"),
        (["http://a:70000/"], "cannot be read.*70000"),
        (["http://a/ b"], "blanks or control"),
        (["http://a\n"], "blanks or control"),
        ([" http://a"], "blanks or control"),
        ([None], "must be text, got None"),
        (["http://a/v1", "http://a/v1/"], "two replicas have the URL 'http://a/v1/'"),
        (["http://a:1/", "http://a:1"], "two replicas"),
    ],
)
def test_r20_replica_urls(urls: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Target.replicas(urls, Client)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Target("", 0), "name of a target must not be empty, got ''"),
        (lambda: Target("  ", 0), "must not be empty, got '  '"),
        (lambda: Target("a\nb", 0), r"control characters, got 'a\\nb'"),
        (lambda: Target("a\x00", 0), "control characters"),
        (lambda: Target("a" * 256, 0), "at most 255 characters, got 256"),
        (lambda: Target(5, 0), "name of a target must be text, got 5"),  # type: ignore[arg-type]
        (lambda: Target("a", 0, region="e\tu"), "region of target 'a'.*control"),
        (lambda: Target("a", 0, provider=None), "provider of target 'a' must be text"),  # type: ignore[arg-type]
        (lambda: Target("a", 0, copies=0), "copies of target 'a' must be a whole number from 1 to 1024, got 0"),
        (lambda: Target("a", 0, copies=-1), "got -1"),
        (lambda: Target("a", 0, copies=1025), "got 1025"),
        (lambda: Target("a", 0, copies=True), "got True"),
        (lambda: Target("a", 0, copies=2.0), "got 2.0"),  # type: ignore[arg-type]
        (lambda: Target("a", 0, domain=()), "domain of target 'a' must not be empty"),
        (lambda: Target("a", 0, domain="us"), "must be a tuple of names, got 'us'"),  # type: ignore[arg-type]
        (lambda: Target("a", 0, domain=3), "must be a tuple of names, got 3"),  # type: ignore[arg-type]
        (lambda: Target("a", 0, domain=("us", "")), "domain of target 'a' must not be empty, got ''"),
        (lambda: Target("a", 0, region="us", domain=("us",)), "give one or the other"),
        (lambda: Target("a", 0, price={"input": -1}), "price of target 'a': input.*got -1"),
        (lambda: Target("a", 0, price={"output": math.nan}), "output.*got nan"),
        (lambda: Target("a", 0, price={"output": math.inf}), "output.*got inf"),
        (lambda: Target("a", 0, price={"input": "2"}), "input.*got '2'"),  # type: ignore[arg-type]
        (lambda: Target("a", 0, price={"prompt": 2}), "got \\['prompt'\\]"),  # type: ignore[arg-type]
        (lambda: Target("a", 0, price=2.0), "must be a mapping"),  # type: ignore[arg-type]
    ],
)
def test_r20_targets(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_names_and_targets_become_targets() -> None:
    a = Target("a", 1)
    assert as_targets([a, "b"])[0] is a
    assert [target.name for target in as_targets([a, "b"])] == ["a", "b"]
    assert as_targets("us")[0].name == "us"
    assert as_targets(a) == (a,)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "at least one target is needed, got none"),
        (3, "targets must be a target, a name, or several of them, got 3"),
        (["a", "a"], "two targets have the name 'a'"),
        ([Target("a", 1), Target("a", 2)], "two targets have the name 'a'"),
        ([object], "must be a Target or a name"),
        ([None], "got None"),
        ([""], "must not be empty"),
    ],
)
def test_r20_what_is_no_list_of_targets(given: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        as_targets(given)


def test_places_are_the_candidates_in_order() -> None:
    found = places(as_targets([Target("a", 1, copies=2), "b"]))
    assert [(place.name, place.domain) for place in found] == [("a", ("a", "1")), ("a", ("a", "2")), ("b", ("b",))]
