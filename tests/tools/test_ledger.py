"""The ledger alone, in virtual time: names, joins, leases, doubts, answers. Two ledgers on one store: two processes."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from agent_hedge.core.step import Effect
from agent_hedge.core.stores import Claim, ClaimState
from agent_hedge.errors import (
    ConfigurationError,
    EffectBarred,
    EffectInDoubt,
    EffectStillRunning,
    StoreUnavailable,
)
from agent_hedge.stores.memory.claims import MemoryClaims
from agent_hedge.testing.clock import run_virtual
from agent_hedge.tools.answers import ANSWERS
from agent_hedge.tools.calls import Permit, Replay
from agent_hedge.tools.effect import EffectSpec
from agent_hedge.tools.guarded import Guarded
from agent_hedge.tools.keys import effect_key, fingerprint
from agent_hedge.tools.ledger import Ledger
from agent_hedge.tools.results import JsonCodec, NotKept
from agent_hedge.tools.site import Frame, Site

ONCE = EffectSpec(effect=Effect.ONCE)
KEYED = EffectSpec(effect=Effect.KEYED, key="order")
IDEMPOTENT = EffectSpec(effect=Effect.IDEMPOTENT)
PAY = {"order": 17, "amount": 5}


class Books:
    """One store, and ledgers on it."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.claims = MemoryClaims(clock=loop.time, epoch=loop.time)
        self.paid: list[str] = []

    def ledger(self, **settings: Any) -> Ledger:
        return Ledger(self.claims, **({"lease": 10.0} | settings))

    async def pay(self, key: str = "", seconds: float = 0.0, fails: BaseException | None = None) -> str:
        self.paid.append(key)
        await asyncio.sleep(seconds)
        if fails is not None:
            raise fails
        return "paid"

    async def run(
        self,
        ledger: Ledger,
        spec: EffectSpec = ONCE,
        arguments: Any = None,
        *,
        seconds: float = 0.0,
        fails: BaseException | None = None,
        **site: Any,
    ) -> Any:
        given = PAY if arguments is None else arguments
        where = Site(**({"run_key": "run", "call_id": "c1"} | site))
        call = ledger.call("pay", spec, given, where)
        body = lambda key: self.pay(key, seconds, fails)  # noqa: E731
        return await Guarded(ledger, None).arun(call, body, arguments=given)

    async def states(self) -> list[ClaimState]:
        return [claim.state for claim in await self.claims.recent(100)]


def virtual(test: Callable[[Books], Awaitable[None]]) -> Callable[[], None]:
    async def main() -> None:
        await test(Books())

    def wrapper() -> None:
        run_virtual(main)

    wrapper.__name__, wrapper.__doc__ = test.__name__, test.__doc__
    return wrapper


# --- names


def test_r11_the_key_is_the_runs_places_tool_and_call() -> None:
    ledger = Ledger(MemoryClaims())
    frame = Frame("x", "tools", 2, "p", "task", 1)
    base = Site(run_key="r", call_id="c", frames=(frame,))

    def key(site: Site, tool: str = "pay") -> str:
        return ledger.call(tool, ONCE, PAY, site).key

    assert len(key(base)) == 64
    again = replace(base, frames=(Frame("other", "tools", 2, "p", "other task", 7),), thread="t", history={"c": 1})
    assert key(again) == key(base)  # the same step, run again in another process
    others = [
        replace(base, run_key="s"),
        replace(base, generation=1),
        replace(base, call_id="d"),
        replace(base, frames=(frame._replace(node="more"),)),
        replace(base, frames=(frame._replace(step=3),)),
        replace(base, frames=(frame, frame)),
    ]
    assert len({key(base), key(base, "mail"), *map(key, others)}) == 8


def test_r11_a_declared_key_decides_alone_within_its_scope() -> None:
    ledger = Ledger(MemoryClaims())

    def key(scope: str, **site: Any) -> str:
        spec = EffectSpec(effect=Effect.ONCE, key="order", scope=scope)
        return ledger.call("pay", spec, PAY, Site(**site)).key

    a: dict[str, Any] = {"run_key": "a", "tenant": "t", "call_id": "1"}
    b: dict[str, Any] = {"run_key": "b", "tenant": "t", "call_id": "2"}
    assert key("run", **a) == key("run", **(a | {"call_id": "9", "generation": 4}))
    assert key("run", **a) != key("run", **b)
    assert key("tenant", **a) == key("tenant", **b)
    assert key("tenant", **a) != key("tenant", **(b | {"tenant": "u"}))
    assert key("global", **a) == key("global", **(b | {"tenant": "u"}))
    with pytest.raises(EffectBarred, match="needs a tenant"):
        key("tenant", run_key="a")


def test_calls_that_nothing_names_are_their_own() -> None:
    ledger = Ledger(MemoryClaims())
    assert ledger.call("pay", ONCE, PAY, Site()).key != ledger.call("pay", ONCE, PAY, Site()).key


def test_r18_a_fingerprint_is_of_values_not_of_their_writing() -> None:
    assert fingerprint("t", {"a": 1, "b": [2.0]}) == fingerprint("t", {"b": (2,), "a": 1.0})
    different: list[dict[str, Any]] = [{}, {"a": None}, {"a": 1}, {"a": "1"}, {"a": True}, {"a": [1]}, {"a": {"x": 1}}]
    assert len({fingerprint("t", one) for one in different}) == len(different)
    assert fingerprint("t", {"a": object()}) == fingerprint("t", {"a": object()})
    assert effect_key("a", "b") != effect_key("ab", "")
    assert effect_key("x") == hashlib.sha256(b'["x"]').hexdigest()


# --- claim, dispatch, settle


@virtual
async def test_r11_a_repeated_call_gets_the_stored_result(books: Books) -> None:
    first, second = books.ledger(), books.ledger()
    assert await books.run(first) == "paid"
    assert await books.run(first) == Replay("paid")
    assert await books.run(second) == Replay("paid")
    assert len(books.paid) == 1
    assert (first.counts(), second.counts()) == ({"run": 1, "replayed": 1}, {"replayed": 1})


@virtual
async def test_r11_eight_concurrent_identical_calls_have_one_effect_and_eight_equal_results(books: Books) -> None:
    ledger = books.ledger()
    results = await asyncio.gather(*(books.run(ledger, seconds=0.5) for _ in range(8)))
    assert [getattr(result, "value", result) for result in results] == ["paid"] * 8
    assert len(books.paid) == 1
    assert ledger.counts() == {"run": 1, "joined": 7}


@virtual
async def test_r11_a_live_duplicate_in_another_process_waits_for_the_result(books: Books) -> None:
    results = await asyncio.gather(*(books.run(books.ledger(), seconds=35.0) for _ in range(8)))
    assert [getattr(result, "value", result) for result in results] == ["paid"] * 8
    assert len(books.paid) == 1  # the lease of 10 s was renewed


@virtual
async def test_r11_the_wait_ends_with_the_deadline_of_the_run(books: Books) -> None:
    first, second = books.ledger(), books.ledger()
    running = asyncio.ensure_future(books.run(first, seconds=30.0))
    await asyncio.sleep(0.1)
    for ledger in (first, second):
        started = asyncio.get_running_loop().time()
        with pytest.raises(EffectStillRunning, match="still running") as caught:
            await books.run(ledger, remaining=2.0)
        assert math.isclose(asyncio.get_running_loop().time() - started, 2.0, abs_tol=0.01)
        assert vars(caught.value)["tool"] == "pay"
    await running
    assert len(books.paid) == 1


@virtual
async def test_r11_the_same_key_with_other_arguments_is_an_error(books: Books) -> None:
    first, second = books.ledger(), books.ledger()
    await books.run(first)
    for ledger in (first, second):
        with pytest.raises(EffectBarred, match="other arguments"):
            await books.run(ledger, arguments={"order": 17, "amount": 6})
    assert len(books.paid) == 1


@virtual
async def test_c11_another_principal_is_refused_with_no_dispatch(books: Books) -> None:
    first = books.ledger()
    running = asyncio.ensure_future(books.run(first, KEYED, seconds=1.0, principal="alice"))
    await asyncio.sleep(0.1)
    for ledger in (first, books.ledger()):  # while it runs, and in another process
        with pytest.raises(EffectBarred, match="another principal"):
            await books.run(ledger, KEYED, principal="bob")
    await running
    with pytest.raises(EffectBarred, match="another principal"):
        await books.run(books.ledger(), KEYED, principal="bob")
    assert len(books.paid) == 1


@virtual
async def test_r11_the_owner_that_died_leaves_it_in_doubt(books: Books) -> None:
    dead = books.ledger()
    call = dead.call("pay", ONCE, PAY, Site(run_key="run", call_id="c1"))
    await dead.admit(call)
    dead._leases._held.clear()  # nobody renews any more
    for _ in range(2):
        with pytest.raises(EffectInDoubt, match="agent-hedge ledger resolve") as caught:
            await books.run(books.ledger())
    said = vars(caught.value)
    assert (said["key"], said["tool"], said["owner"]) == (call.key, "pay", dead.incarnation)
    assert said["age"] >= 10.0
    assert books.paid == []
    assert await books.states() == [ClaimState.IN_DOUBT]


@virtual
async def test_r11_a_late_owner_still_says_that_it_happened(books: Books) -> None:
    slow = books.ledger()
    call = slow.call("pay", ONCE, PAY, Site(run_key="run", call_id="c1"))
    permit = await slow.admit(call)
    assert isinstance(permit, Permit)
    slow._leases._held.clear()
    await asyncio.sleep(11.0)
    with pytest.raises(EffectInDoubt):
        await books.run(books.ledger())
    await slow.done(permit, "late")
    assert await books.run(books.ledger()) == Replay("late")


@virtual
async def test_r11_keyed_and_idempotent_are_run_again_with_the_same_key(books: Books) -> None:
    for spec in (KEYED, IDEMPOTENT):
        books.paid.clear()
        dead = books.ledger()
        call = dead.call("pay", spec, PAY, Site(run_key=str(spec.effect), call_id="c1"))
        await dead.admit(call)
        dead._leases._held.clear()
        await asyncio.sleep(11.0)
        assert await books.run(books.ledger(), spec, run_key=str(spec.effect)) == "paid"
        assert books.paid == [call.key]


@virtual
async def test_r11_not_when_the_other_side_may_have_forgotten_the_key(books: Books) -> None:
    for retention, asked_again in ((None, 86_500.0), (60.0, 70.0)):
        spec = EffectSpec(effect=Effect.KEYED, retention=retention)
        site: Any = {"run_key": str(retention), "call_id": "c1"}
        dead = books.ledger()
        await dead.admit(dead.call("pay", spec, PAY, Site(**site)))
        dead._leases._held.clear()
        await asyncio.sleep(asked_again)
        with pytest.raises(EffectInDoubt):
            await books.run(books.ledger(), spec, **site)
    assert books.paid == []


@virtual
async def test_c11_repeat_allowed_false_bars_the_second_run(books: Books) -> None:
    spec = EffectSpec(effect=Effect.IDEMPOTENT, repeat_allowed=False)
    with pytest.raises(EffectInDoubt):
        await books.run(books.ledger(), spec, fails=ConnectionError())
    with pytest.raises(EffectInDoubt):
        await books.run(books.ledger(), spec)
    assert len(books.paid) == 1


@virtual
async def test_r11_at_least_once_is_asked_for_by_name(books: Books) -> None:
    spec = EffectSpec(effect=Effect.ONCE, at_least_once=True)
    dead = books.ledger()
    await dead.admit(dead.call("pay", spec, PAY, Site(run_key="run", call_id="c1")))
    dead._leases._held.clear()
    await asyncio.sleep(11.0)
    assert await books.run(books.ledger(), spec) == "paid"


@virtual
async def test_r11_an_error_is_doubt_at_once_unless_it_proves_that_nothing_happened(books: Books) -> None:
    ledger = books.ledger()
    with pytest.raises(EffectInDoubt, match="it raised ConnectionError") as caught:
        await books.run(ledger, fails=ConnectionError("secret"))
    assert "secret" not in str(caught.value)
    with pytest.raises(EffectInDoubt):
        await books.run(ledger)
    spec = EffectSpec(effect=Effect.ONCE, not_started=(PermissionError,))
    with pytest.raises(PermissionError):
        await books.run(ledger, spec, run_key="other", fails=PermissionError())
    assert await books.run(ledger, spec, run_key="other") == "paid"
    assert len(books.paid) == 3


@virtual
async def test_r11_a_cancelled_call_is_in_doubt_and_the_cancel_goes_on(books: Books) -> None:
    ledger = books.ledger()
    task = asyncio.ensure_future(books.run(ledger, seconds=5.0))
    await asyncio.sleep(1.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.1)
    assert await books.states() == [ClaimState.IN_DOUBT]


@virtual
async def test_r11_a_claim_that_nobody_waits_for_any_more_is_withdrawn(books: Books) -> None:
    class Slow(MemoryClaims):
        async def claim(self, claim: Claim, *, lease: float) -> Claim:
            row = await super().claim(claim, lease=lease)
            await asyncio.sleep(1.0)
            return row

    loop = asyncio.get_running_loop()
    books.claims = Slow(clock=loop.time, epoch=loop.time)
    ledger = books.ledger()
    task = asyncio.ensure_future(books.run(ledger))
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(1.0)
    assert await books.states() == [ClaimState.FAILED]
    assert await books.run(ledger) == "paid"
    assert len(books.paid) == 1


@virtual
async def test_r11_a_verifier_may_only_say_that_it_happened(books: Books) -> None:
    asked: list[tuple[Any, ...]] = []

    def seen(claim: Claim, order: int) -> bool:
        asked.append((claim.tool, order))
        return len(asked) > 1

    async def aseen(claim: Claim, **arguments: Any) -> bool:
        return seen(claim, arguments["order"])

    for verify in (seen, aseen):
        asked.clear()
        spec = EffectSpec(effect=Effect.ONCE, verify=verify)
        site: Any = {"run_key": verify.__name__}
        with pytest.raises(EffectInDoubt):
            await books.run(books.ledger(), spec, fails=ConnectionError(), **site)
        with pytest.raises(EffectInDoubt):
            await books.run(books.ledger(), spec, **site)
        assert await books.run(books.ledger(), spec, **site) == Replay(None, kept=False)
        assert asked == [("pay", 17)] * 2
    assert len(books.paid) == 2


@virtual
async def test_r11_a_person_answers(books: Books) -> None:
    for answer in ANSWERS:
        books.paid.clear()
        ledger = books.ledger()
        with pytest.raises(EffectInDoubt) as caught:
            await books.run(ledger, run_key=answer, fails=ConnectionError())
        key = vars(caught.value)["key"]
        await ledger.answer(key, answer)
        again = await books.run(ledger, run_key=answer)
        assert (
            again
            == {
                "happened": Replay(None, kept=False),
                "did_not_happen": "paid",
                "abandon": Replay(None, kept=False, abandoned=True),
            }[answer]
        )
        if answer != "abandon":
            with pytest.raises(ConfigurationError, match="nothing to resolve"):
                await ledger.answer(key, "happened")
    with pytest.raises(ConfigurationError, match="no such claim"):
        await ledger.answer("0" * 64, "happened")
    with pytest.raises(ConfigurationError, match="an answer is one of"):
        await ledger.answer(key, "maybe")  # type: ignore[arg-type]


@virtual
async def test_r11_of_two_people_who_answer_at_once_one_is_heard(books: Books) -> None:
    ledger = books.ledger()
    with pytest.raises(EffectInDoubt) as caught:
        await books.run(ledger, fails=ConnectionError())
    key = vars(caught.value)["key"]
    get, looks, both = books.claims.get, [0], asyncio.Event()

    async def both_look(effect_key: str) -> Claim | None:
        row = await get(effect_key)
        looks[0] += 1
        if looks[0] == 2:
            both.set()
        await both.wait()
        return row

    books.claims.get = both_look  # type: ignore[method-assign]
    answers = [ledger.answer(key, "happened"), ledger.answer(key, "did_not_happen")]
    told = await asyncio.gather(*answers, return_exceptions=True)
    (heard,) = [one for one in told if isinstance(one, Claim)]
    (refused,) = [one for one in told if isinstance(one, ConfigurationError)]
    assert heard.state is (ClaimState.DONE if told[0] is heard else ClaimState.FAILED)
    assert "settled by somebody else" in str(refused)


@virtual
async def test_r11_a_call_that_ends_while_its_verifier_looks_is_replayed(books: Books) -> None:
    slow, other = books.ledger(lease=1.0), books.ledger(lease=1.0)

    async def looks(claim: Claim) -> bool:
        await asyncio.sleep(5.0)
        return True

    spec = EffectSpec(effect=Effect.ONCE, verify=looks)
    owner = asyncio.ensure_future(books.run(slow, spec, seconds=4.0))
    await asyncio.sleep(0.1)
    (claim,) = await books.claims.recent(1)
    await books.claims.mark_in_doubt(claim.effect_key, if_expired=False)  # as where its process stood still too long
    assert await books.run(other, spec) == Replay("paid")
    assert await owner == "paid"
    assert len(books.paid) == 1


@virtual
async def test_r11_a_living_call_cannot_be_answered_for(books: Books) -> None:
    ledger = books.ledger()
    running = asyncio.ensure_future(books.run(ledger, seconds=5.0))
    await asyncio.sleep(1.0)
    (claim,) = await books.claims.recent(1)
    with pytest.raises(ConfigurationError, match="running"):
        await books.ledger().answer(claim.effect_key, "did_not_happen")
    await running


# --- torn history


def site_of(call_id: str, *, execution: str = "e", step: int = 2, attempt: int = 1, **more: Any) -> dict[str, Any]:
    frames = (Frame(execution, "tools", step, "", f"task {step}", attempt),)
    given = {"run_key": "", "thread": "t", "call_id": call_id, "frames": frames, "persistent": True}
    return given | {"history": {call_id: 1}} | more


WORDS = [{"order": 17, "amount": n} for n in range(9)]


@virtual
async def test_r11_a_call_of_a_lost_step_puts_the_next_one_in_doubt(books: Books) -> None:
    await books.run(books.ledger(), arguments=WORDS[0], **site_of("c1"))
    with pytest.raises(EffectInDoubt, match="missing in the history"):
        await books.run(books.ledger(), arguments=WORDS[1], **site_of("c2", execution="f"))
    assert len(books.paid) == 1


@virtual
async def test_r11_a_call_that_the_history_knows_is_confirmed_and_may_be_forgotten_later(books: Books) -> None:
    await books.run(books.ledger(), arguments=WORDS[0], **site_of("c1"))
    other = books.ledger()
    await books.run(other, arguments=WORDS[1], **site_of("c2", execution="f", step=5, history={"c1": 1, "c2": 1}))
    assert (await books.claims.of_thread("t"))[0].confirmed
    third = site_of("c3", execution="g", step=8, history={"c2": 1, "c3": 1})  # c1 has been trimmed
    assert await books.run(books.ledger(), arguments=WORDS[2], **third) == "paid"


@virtual
async def test_r11_seen_in_memory_is_not_enough(books: Books) -> None:
    """Under async durability a later step of the same invocation proves nothing; under sync it does."""
    for durability, confirmed in (("async", False), ("sync", True)):
        books.claims = MemoryClaims(clock=asyncio.get_running_loop().time)
        ledger = books.ledger()
        await books.run(ledger, arguments=WORDS[0], **site_of("c1", durability=durability))
        later = site_of("c2", step=4, durability=durability, history={"c1": 1, "c2": 1})
        await books.run(ledger, arguments=WORDS[1], **later)
        assert (await books.claims.of_thread("t"))[0].confirmed is confirmed


@virtual
async def test_r11_a_later_invocation_of_this_process_confirms_what_it_was_given_back(books: Books) -> None:
    ledger = books.ledger()
    await books.run(ledger, arguments=WORDS[0], **site_of("c1"))
    await books.run(ledger, arguments=WORDS[1], **site_of("c2", execution="f", step=6, history={"c1": 1, "c2": 1}))
    assert (await books.claims.of_thread("t"))[0].confirmed


@virtual
async def test_r11_going_forward_in_one_process_needs_no_history(books: Books) -> None:
    ledger = books.ledger()
    await books.run(ledger, arguments=WORDS[0], **site_of("c1"))
    await books.run(ledger, arguments=WORDS[1], **site_of("c2", step=4))
    await books.run(ledger, arguments=WORDS[2], **site_of("c3", execution="next turn", step=9))
    assert len(books.paid) == 3


@virtual
async def test_r11_a_retried_node_must_find_its_call_again(books: Books) -> None:
    ledger = books.ledger()
    await books.run(ledger, arguments=WORDS[0], **site_of("c1", history={}))
    with pytest.raises(EffectInDoubt):
        await books.run(ledger, arguments=WORDS[1], **site_of("c2", attempt=2, history={}))


@virtual
async def test_r11_a_resumed_step_in_the_same_process_must_find_its_call_again(books: Books) -> None:
    ledger = books.ledger()
    await books.run(ledger, arguments=WORDS[0], **site_of("c1", history={}))
    with pytest.raises(EffectInDoubt):
        await books.run(ledger, arguments=WORDS[1], **site_of("c2", execution="resumed", history={}))


@virtual
async def test_r11_ids_that_repeat_are_counted(books: Books) -> None:
    """A provider that calls every call the same: the history must know as many as there were."""
    first = books.ledger()
    await books.run(first, arguments=WORDS[0], **site_of("call_0"))
    await books.run(first, arguments=WORDS[1], **site_of("call_0", step=4, history={"call_0": 2}))
    again = site_of("call_0", execution="f", step=6, history={"call_0": 3})
    assert await books.run(books.ledger(), arguments=WORDS[2], **again) == "paid"
    torn = site_of("call_0", execution="g", step=8, history={"call_0": 1})
    with pytest.raises(EffectInDoubt):
        await books.run(books.ledger(), arguments=WORDS[3], **torn)


@virtual
async def test_r11_a_declared_key_decides_instead(books: Books) -> None:
    spec = EffectSpec(effect=Effect.ONCE, key="order")
    await books.run(books.ledger(), spec, arguments=WORDS[0], **site_of("c1"))
    other = {"order": 18, "amount": 1}
    assert await books.run(books.ledger(), spec, arguments=other, **site_of("c2", execution="f")) == "paid"
    assert await books.run(books.ledger(), spec, arguments=WORDS[0], **site_of("c3", execution="g")) == Replay("paid")


@virtual
async def test_r11_keyed_without_a_declared_key_is_looked_at_too(books: Books) -> None:
    spec = EffectSpec(effect=Effect.KEYED)
    await books.run(books.ledger(), spec, arguments=WORDS[0], **site_of("c1"))
    with pytest.raises(EffectInDoubt):  # its key comes from the call id, so the other side could not tell
        await books.run(books.ledger(), spec, arguments=WORDS[1], **site_of("c2", execution="f"))


@virtual
async def test_r11_the_same_call_while_it_runs_or_is_in_doubt(books: Books) -> None:
    ledger = books.ledger()
    running = asyncio.ensure_future(books.run(ledger, seconds=5.0, **site_of("c1")))
    await asyncio.sleep(0.1)
    both = {"c1": 1, "c2": 1}
    assert await books.run(ledger, arguments=WORDS[1], **site_of("c3", history=both | {"c3": 1})) == "paid"
    with pytest.raises(EffectInDoubt, match="same arguments is still running"):
        await books.run(ledger, **site_of("c2", history=both))
    await running


@virtual
async def test_r11_a_call_in_doubt_bars_its_tool_but_not_its_siblings(books: Books) -> None:
    ledger = books.ledger()
    with pytest.raises(EffectInDoubt):
        await books.run(ledger, arguments=WORDS[0], fails=ConnectionError(), **site_of("c1"))
    known = {"c1": 1, "c2": 1}
    asked_together = site_of("c2", history=known, siblings=frozenset(known))
    assert await books.run(ledger, arguments=WORDS[1], **asked_together) == "paid"
    with pytest.raises(EffectInDoubt, match="earlier call of this tool is in doubt"):
        await books.run(ledger, arguments=WORDS[2], **site_of("c3", step=4, history=known | {"c3": 1}))


@virtual
async def test_r11_the_same_call_reached_on_another_way_is_in_doubt(books: Books) -> None:
    await books.run(books.ledger(), **site_of("c1"))
    inside = site_of("c1", execution="f", step=9)  # say, by a subgraph whose place has changed
    with pytest.raises(EffectInDoubt, match="claimed in another place"):
        await books.run(books.ledger(), **inside)


@virtual
async def test_r11_an_answer_settles_the_torn_history_too(books: Books) -> None:
    await books.run(books.ledger(), arguments=WORDS[0], **site_of("c1"))
    last = books.ledger()
    with pytest.raises(EffectInDoubt) as caught:
        await books.run(last, arguments=WORDS[1], **site_of("c2", execution="f"))
    await last.answer(vars(caught.value)["key"], "did_not_happen")
    assert await books.run(books.ledger(), arguments=WORDS[1], **site_of("c2", execution="f")) == "paid"
    later = site_of("c3", execution="g", step=4, history={"c2": 1, "c3": 1})
    assert await books.run(books.ledger(), arguments=WORDS[2], **later) == "paid"


@virtual
async def test_r11_claims_lost_with_a_restored_backup(books: Books) -> None:
    await asyncio.sleep(100.0)
    await books.claims.fence(50.0)
    with pytest.raises(EffectInDoubt, match="restored backup"):
        await books.run(books.ledger(), born=80.0)
    assert await books.run(books.ledger(), run_key="new", born=150.0) == "paid"
    assert await books.run(books.ledger(), KEYED, run_key="old", born=80.0) == "paid"  # the other side remembers


# --- a store that fails


class Shaky(MemoryClaims):
    """Fails before, or after the verb was applied."""

    def __init__(self, **clocks: Any) -> None:
        super().__init__(**clocks)
        self.before: set[str] = set()
        self.after: set[str] = set()

    async def _shaky(self, verb: str, work: Awaitable[Any]) -> Any:
        if verb in self.before:
            work.close()  # type: ignore[attr-defined]
            raise StoreUnavailable
        result = await work
        if verb in self.after:
            raise StoreUnavailable
        return result

    async def claim(self, claim: Claim, *, lease: float) -> Claim:
        row: Claim = await self._shaky("claim", super().claim(claim, lease=lease))
        return row

    async def settle(self, *args: Any, **kwargs: Any) -> bool:
        return bool(await self._shaky("settle", super().settle(*args, **kwargs)))


@virtual
async def test_r14_no_claim_no_dispatch(books: Books) -> None:
    loop = asyncio.get_running_loop()
    shaky = books.claims = Shaky(clock=loop.time, epoch=loop.time)
    ledger = books.ledger()
    for fault in (shaky.before, shaky.after):  # the second time the row is there, and we do not hear of it
        fault.add("claim")
        with pytest.raises(StoreUnavailable):
            await books.run(ledger)
        fault.clear()
    assert books.paid == []
    assert await books.run(ledger) == "paid"  # the claim whose reply was lost is recognised as our own
    assert len(books.paid) == 1


@virtual
async def test_r14_a_claim_that_was_never_sent_puts_nothing_in_doubt(books: Books) -> None:
    loop = asyncio.get_running_loop()
    shaky = books.claims = Shaky(clock=loop.time, epoch=loop.time)
    ledger = books.ledger()
    shaky.after.add("claim")
    with pytest.raises(StoreUnavailable):
        await books.run(ledger, call_id="c1")
    shaky.after.clear()
    assert await books.run(ledger, call_id="c2") == "paid"
    assert sorted(await books.states()) == [ClaimState.DONE, ClaimState.FAILED]


@virtual
async def test_r14_a_result_is_given_although_it_cannot_be_written_down_yet(books: Books) -> None:
    loop = asyncio.get_running_loop()
    shaky = books.claims = Shaky(clock=loop.time, epoch=loop.time)
    ledger = books.ledger()
    shaky.before.add("settle")
    assert await books.run(ledger) == "paid"
    assert await books.run(ledger) == Replay("paid")  # this process knows
    shaky.before.clear()
    await asyncio.sleep(30.0)
    assert await books.states() == [ClaimState.DONE]
    assert await books.run(books.ledger()) == Replay("paid")
    assert len(books.paid) == 1


# --- results


@virtual
async def test_results_are_not_kept_where_that_is_not_wanted_or_not_possible(books: Books) -> None:
    silent = books.ledger(keep_results=False)
    await books.run(silent)
    assert await books.run(silent) == Replay(None, kept=False)

    ledger = books.ledger()
    call = ledger.call("pay", ONCE, PAY, Site(run_key="odd", call_id="c1"))
    permit = await ledger.admit(call)
    assert isinstance(permit, Permit)
    await ledger.done(permit, object())
    assert await ledger.admit(call) == Replay(None, kept=False)
    (claim, *_) = await books.claims.recent(1)
    assert claim.note == "the result, a object, has no stored form"


@pytest.mark.parametrize("value", [None, "ok", 1.5, [1, [2]], ("content", {"a": 1}), {"a": ["b", ("c",)]}, [], ()])
def test_json_keeps_what_comes_back_as_it_was(value: object) -> None:
    codec = JsonCodec()
    assert codec.decode(codec.encode(value)) == value
    assert type(codec.decode(codec.encode(value))) is type(value)


@pytest.mark.parametrize("value", [object(), {1: "a"}, b"bytes", {"a": {1, 2}}, float("nan")])
def test_json_refuses_what_would_come_back_otherwise(value: object) -> None:
    with pytest.raises(NotKept):
        JsonCodec().encode(value)


def test_r20_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="lease"):
        Ledger(MemoryClaims(), lease=0)
