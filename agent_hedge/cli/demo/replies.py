"""What the replicas say: short answers, each in one event, sent with the headers when the first token comes.

Several hosts stream like that. It keeps the demo's clients cheap, and the wait before the first token is what the demo
is about. Lives in the replicas' processes.
"""

from __future__ import annotations

import json
from typing import Any

from agent_hedge.testing.engine import Fault, Replay, Request

Delta = dict[str, Any]


def _event(delta: Delta, finish: str) -> Fault:
    choice = {"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": finish}
    chunk = {"id": "demo", "object": "chat.completion.chunk", "created": 0, "model": "demo", "choices": [choice]}
    return Fault(replay=Replay(body=f"data: {json.dumps(chunk)}\n\n".encode()), late_headers=True)


def _call(page: int) -> Fault:
    function = {"name": "read_page", "arguments": json.dumps({"page": page})}
    call = {"index": 0, "id": f"call_{page}", "type": "function", "function": function}
    return _event({"tool_calls": [call]}, "tool_calls")


PLAN = _event({"content": "Read the file, then compare."}, "stop")
NOTED = _event({"content": "Noted."}, "stop")
ANSWER = _event({"content": "One charge was a deposit; it has been paid back."}, "stop")
CALLS = tuple(_call(page) for page in range(4))


def reply(request: Request) -> Fault:
    """Call the tool where there is one; else a plan, an answer, or a nod."""
    if request.tools:
        return CALLS[len(request.body) % len(CALLS)]
    if request.prompt.startswith("Plan"):
        return PLAN
    return ANSWER if request.prompt.startswith("Answer") else NOTED
