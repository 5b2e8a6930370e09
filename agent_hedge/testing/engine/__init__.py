"""A fake serving engine: OpenAI's chat API on loopback, with the queues, clocks and failures of a real one.

    async with FakeEngine("lognormal:0.3,0.2", faults=Fault(notice=Notice.NEVER)) as engine:
        model = ChatOpenAI(model="any", base_url=engine.base_url, api_key="none")
        ...
        await engine.wait_idle()
        assert engine.records[-1].computed_after_disconnect == 0

Needs the extra ``agent-hedge[demo]`` (h11).
"""

from agent_hedge.testing.engine.app import Received
from agent_hedge.testing.engine.faults import Fault, parse_fault
from agent_hedge.testing.engine.hosting import RemoteEngine, serve_in_process
from agent_hedge.testing.engine.replay import Replay, split_events
from agent_hedge.testing.engine.replies import Reply, ToolCall
from agent_hedge.testing.engine.request import Request
from agent_hedge.testing.engine.server import FakeEngine
from agent_hedge.testing.serving import Ending, Hardware, Notice, Record, Stall

__all__ = [
    "Ending",
    "FakeEngine",
    "Fault",
    "Hardware",
    "Notice",
    "Received",
    "Record",
    "RemoteEngine",
    "Replay",
    "Reply",
    "Request",
    "Stall",
    "ToolCall",
    "parse_fault",
    "serve_in_process",
    "split_events",
]
