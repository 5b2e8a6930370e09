"""B5: a thousand random hedged streams in virtual time, cancelled at random awaits; nothing leaks, nothing stays alive.

Every token names its member and its call, so that whatever is seen can be told to come from one attempt.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from langchain_core.callbacks import UsageMetadataCallbackHandler
from langchain_core.messages import AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGenerationChunk
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph

from agent_hedge import Fixed, Hedger
from agent_hedge.adapters.langchain.model import HedgedChatModel
from agent_hedge.engine.reaper import GRACE_S
from agent_hedge.testing.clock import run_virtual
from tests.adapters.langchain.kit import Ear, Scripted, ample, usage

SCENARIOS, A_PART = 1_000, 125
PAUSES = (0.0, 0.0, 0.1, 0.25, 0.5, 1.0, 2.0)
ERRORS = (ConnectionError, ConnectionError, ValueError)


class Member(Scripted):
    """Streams a random script; now and then it swallows its first cancel, as clients do on Python 3.11."""

    seed: int
    number: int

    def __init__(self, seed: int, number: int) -> None:
        super().__init__(seed=seed, number=number, model_name="random")
        self.script = self.draw

    def draw(self, call: int) -> list[Any]:
        rng = random.Random(f"{self.seed}/{self.number}/{call}")
        steps: list[Any] = [""] * rng.randint(0, 2)
        length = rng.choice((0, 1, 3, 6))
        for index in range(length):
            steps += [rng.choice(PAUSES), f"{self.number}.{call}.{index} "]
        steps += [rng.choice(PAUSES), usage(100 * (self.number + 1) + call)]
        if rng.random() < 0.25:
            steps[rng.randrange(len(steps))] = rng.choice(ERRORS)("broken")
        return steps

    async def _astream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        swallows = random.Random(f"{self.seed}/{self.number}/{len(self.calls)}/swallows").random() < 0.2
        async with aclosing(super()._astream(messages, stop, **kwargs)) as stream:  # type: ignore[type-var]
            iterator = stream.__aiter__()
            while True:
                following = asyncio.ensure_future(anext(iterator))
                try:
                    chunk = await asyncio.shield(following) if swallows else await following
                except StopAsyncIteration:
                    return
                except asyncio.CancelledError:
                    if not swallows:
                        raise
                    swallows = False
                    try:
                        chunk = await following
                    except StopAsyncIteration:
                        return
                yield chunk


def tokens(text: str) -> list[str]:
    return text.split()


class Scenario:
    """One hedged call in one way, and what may be true of it afterwards."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.members = [Member(seed, number) for number in range(self.rng.choice((2, 2, 3)))]
        self.ear = Ear()
        self.usage = UsageMetadataCallbackHandler()
        self.usage.run_inline = True
        self.seen: list[str] = []
        self.written: list[str] = []
        self.broken_off = False
        self.how = self.rng.choice(("astream", "ainvoke", "break", "graph", "events"))
        policy = Fixed(self.rng.choice((0.0, 0.25, 0.5, 1.0)), attempts=self.rng.choice((2, 3)))
        self.hedger: Hedger = ample(policy=policy)

    async def play(self) -> None:
        async with self.hedger.run():
            model = self.hedger.chat_model(*self.members)
            call = asyncio.ensure_future(self.call(model))
            if self.rng.random() < 0.6:
                await asyncio.sleep(self.rng.choice((0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 2.0)) * self.rng.choice((1, 1, 2)))
                for _ in range(self.rng.randint(0, 12)):
                    await asyncio.sleep(0)
                self.broken_off = not call.done()
                call.cancel()
            results = await asyncio.gather(call, return_exceptions=True)
            if not isinstance(results[0], (asyncio.CancelledError, ConnectionError, ValueError, type(None))):
                raise results[0]
        if self.how == "break":  # nobody awaits the end of a stream that is dropped: the garbage collector closes it
            await asyncio.sleep(GRACE_S)
        for _ in range(10):
            await asyncio.sleep(0)

    async def call(self, model: HedgedChatModel) -> None:
        config: Any = {"callbacks": [self.ear, self.usage]}
        if self.how == "ainvoke":
            self.seen += tokens((await model.ainvoke("Hello", config)).text)
        elif self.how == "events":
            async for event in model.astream_events("Hello", config, version="v2"):
                if event["event"] == "on_chat_model_stream":
                    self.seen += tokens(event["data"]["chunk"].text)
        elif self.how == "graph":
            await self.through_a_graph(model, config)
        else:
            stop_after = self.rng.randint(1, 3) if self.how == "break" else 1_000
            async for chunk in model.astream("Hello", config):
                self.seen += tokens(chunk.text)
                stop_after -= 1
                if stop_after == 0:
                    self.broken_off = True
                    break

    async def through_a_graph(self, model: HedgedChatModel, config: Any) -> None:
        async def ask(state: MessagesState) -> dict[str, Any]:
            write, whole = get_stream_writer(), AIMessageChunk(content="")
            async for chunk in model.astream(state["messages"]):
                write(chunk.text)
                whole += chunk
            return {"messages": [whole]}

        builder = StateGraph(MessagesState)
        builder.add_node("ask", ask)
        builder.add_edge(START, "ask")
        stream = builder.compile().astream(
            {"messages": [HumanMessage("Hello")]}, config, stream_mode=["messages", "custom"]
        )
        async for mode, part in stream:
            if mode == "custom":
                self.written += tokens(str(part))
            elif isinstance(part[0], AIMessageChunk):
                self.seen += tokens(part[0].text)

    def check(self) -> None:
        heard = [word for kind, token in self.ear.heard if kind == "token" for word in tokens(token)]
        for words in (self.seen, self.written, heard):
            self.check_words(words)
        assert self.ear.kinds[:1] in (["start"], [])
        ends = [kind for kind in self.ear.kinds if kind in ("end", "error")]
        starts = self.ear.kinds.count("start")
        early = self.broken_off and not any(m.calls for m in self.members)  # LangChain leaves such a run open
        assert len(ends) == starts <= 1 or (early and starts == 1 and not ends)
        counted = [counts["output_tokens"] for counts in self.usage.usage_metadata.values()]
        assert len(counted) <= 1
        if ends == ["end"] and self.seen:
            member, call, _ = self.seen[0].split(".")
            assert counted == [100 * (int(member) + 1) + int(call)]
        if not self.broken_off and ends == ["end"] and self.how == "graph":
            assert self.written == self.seen
        assert [member.alive for member in self.members] == [[]] * len(self.members)

    def check_words(self, words: list[str]) -> None:
        """All from one call of one member, from its first word on and in order."""
        if words:
            member, call, _ = words[0].split(".")
            assert words == [f"{member}.{call}.{index}" for index in range(len(words))]


@pytest.mark.parametrize("part", range(SCENARIOS // A_PART))
def test_r05_nothing_of_a_loser_is_seen_and_nothing_stays_alive(part: int) -> None:
    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        ways = set()
        for seed in range(part * A_PART, (part + 1) * A_PART):
            scenario = Scenario(seed)
            try:
                await scenario.play()
                scenario.check()
                assert asyncio.all_tasks() == {asyncio.current_task()}
                assert [generator for generator in loop._asyncgens if generator.ag_frame is not None] == []
                assert scenario.hedger.status()["abandoned"] == 0
            except BaseException as error:
                error.add_note(f"seed {seed}, {scenario.how}")
                raise
            ways.add((scenario.how, scenario.broken_off))
        assert len(ways) == 10

    run_virtual(main)
