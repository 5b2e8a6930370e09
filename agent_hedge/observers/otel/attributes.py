"""What spans say: facts in, attributes out.

The conventions' attributes stand on an attempt from its start, where samplers look for them. Everything else is said
in one go at the end: each call into the SDK costs 2 us before it has stored anything (measured).
"""

from __future__ import annotations

import json
import logging
from typing import Any

from agent_hedge.core.events import AttemptEnded, RunEnded, RunStarted, StepEnded, StepReopened, StepStarted
from agent_hedge.core.scope import Run
from agent_hedge.core.step import FOREVER, Attempt, Certainty, StepKey, Usage, Verdict
from agent_hedge.observers.described import Described
from agent_hedge.observers.otel import names
from agent_hedge.observers.outcome import CANCELLED, outcome_of

logger = logging.getLogger("agent_hedge.otel")

Attributes = dict[str, Any]

_INSTANT_S = 1e-9


def of_run(event: RunStarted | StepStarted | StepReopened) -> Attributes:
    """Say which run this is, and how long it has."""
    return {} if type(event) is StepReopened else _with_run({}, event)  # type: ignore[arg-type]


def of_step(event: StepStarted | StepReopened) -> Attributes:
    """Say which step this is, of which run, and how long it has."""
    key = event.key
    said: Attributes = {names.NODE: key.node}
    if key.model:
        said[names.MODEL] = key.model
    if type(event) is StepReopened:
        said[names.REOPENED] = True
        return said
    return _with_run(said, event)  # type: ignore[arg-type]


def _with_run(said: Attributes, event: RunStarted | StepStarted) -> Attributes:
    if event.run_key:
        said[names.RUN_KEY] = event.run_key
        said[names.RUN_GENERATION] = event.generation
    if event.tenant:
        said[names.TENANT] = event.tenant
    if event.deadline < FOREVER:
        said[names.DEADLINE_LEFT] = event.deadline - event.at
    return said


def of_run_end(event: RunEnded) -> Attributes:
    """Say what a run has used."""
    said: Attributes = {
        names.RUN_STEPS: event.steps,
        names.RUN_HEDGES: event.hedges,
        names.RUN_RECOVERIES: event.recoveries,
    }
    if event.error and event.error != "CancelledError":
        said[names.ERROR_TYPE] = event.error
    return said


def of_left(run: Run) -> Attributes:
    """Say what a run has used of which no scope was left."""
    return {
        names.RUN_STEPS: run.steps,
        names.RUN_HEDGES: run.extra_attempts_used,
        names.RUN_RECOVERIES: run.recoveries_used,
    }


def of_answer(event: StepEnded, *, hedges: int, refused: str) -> Attributes:
    """Say how a step ended; `refused` is the last reason why an attempt was not dispatched."""
    outcome = outcome_of(event)
    said: Attributes = {names.OUTCOME: outcome, names.LAUNCHED: event.launched}
    if hedges:
        said[names.HEDGES] = hedges
    elif refused:
        said[names.REASON] = refused
    if event.winner is not None:
        said[names.WINNER] = event.winner.target.name
    if event.error and outcome != CANCELLED:
        said[names.ERROR_TYPE] = event.error
    return said


def of_request(key: StepKey, described: Described, *, latest: bool) -> Attributes:
    """Say what is asked for, and where, in the conventions' words. `latest`: in the newest ones only."""
    said: Attributes = {}
    if key.model:
        provider = described.provider or "_OTHER"
        said = {
            names.OPERATION: "chat",
            names.PROVIDER: provider,
            names.REQUEST_MODEL: described.model or key.model,
        }
        if not latest:
            said[names.SYSTEM_OLD] = provider
    if described.address:
        said[names.SERVER_ADDRESS] = described.address
        if described.port is not None:
            said[names.SERVER_PORT] = described.port
    return said


def of_attempt(attempt: Attempt) -> Attributes:
    """Say which attempt this is."""
    target = attempt.target
    said: Attributes = {
        names.TARGET: target.name,
        names.ROLE: str(attempt.role),
        names.NUMBER: attempt.number,
        names.ATTEMPT_ID: attempt.id,
    }
    if len(target.domain) > 1:  # else it is the target's name
        said[names.DOMAIN] = "/".join(target.domain)
    if attempt.deadline < FOREVER:
        said[names.DEADLINE_LEFT] = attempt.deadline - attempt.started_at
    return said


def of_end(event: AttemptEnded) -> Attributes:
    """Say how an attempt ended, and when it was where."""
    said: Attributes = {names.OUTCOME: str(event.verdict)}
    if event.latency is not None:
        decode = event.at - event.attempt.started_at - event.latency
        if decode > _INSTANT_S:  # else it came whole, and its first token was not seen
            said[names.TTFT] = event.latency
            said[names.DECODE] = decode
            if event.key.model:
                said[names.FIRST_CHUNK] = event.latency
    released, cancelled = event.receipt.released, event.receipt.cancel_sent
    if released is not None and cancelled is not None:
        said[names.CANCEL_TO_RELEASE] = released - cancelled
    if event.receipt.tool_s:
        said[names.TOOL_WAIT] = event.receipt.tool_s
    if event.receipt.phase:
        said[names.PHASE] = event.receipt.phase
    if event.verdict is Verdict.FAILED:
        said[names.ERROR_TYPE] = event.error or "_OTHER"
        if event.failure is not None:
            said[names.FAILURE] = str(event.failure)
    return said


def of_usage(usage: Usage, *, counted: bool) -> Attributes:
    """Say what an attempt has used; `counted`: its tokens are not on somebody else's span of the same call."""
    said: Attributes = {names.CERTAINTY: str(usage.certainty)}
    if usage.connect is not None:
        said[names.CONNECT] = usage.connect
    if usage.headers is not None:
        said[names.HEADERS] = usage.headers
    if usage.queue is not None:
        said[names.QUEUE] = usage.queue
    if usage.longest_gap:
        said[names.LONGEST_GAP] = usage.longest_gap
    if usage.response_id:
        said[names.RESPONSE_ID] = usage.response_id
    if usage.response_model:
        said[names.RESPONSE_MODEL] = usage.response_model
    if usage.finish:
        said[names.FINISH_REASONS] = (usage.finish,)
    if not counted:
        return said
    if usage.certainty is not Certainty.EXACT:  # a lower bound is no usage: it would be added up as if it were
        if usage.output is not None:
            said[names.RECEIVED] = usage.output
        return said
    counts = {
        names.INPUT_TOKENS: usage.input,
        names.OUTPUT_TOKENS: usage.output,
        names.CACHE_READ_TOKENS: usage.cached,
    }
    return said | {name: count for name, count in counts.items() if count is not None}


def of_content(usage: Usage) -> Attributes:
    """Say what was asked and what has come of an answer, as JSON (the SDK's attributes hold no structure)."""
    try:
        content = usage.content()
        if content is None:
            return {}
        messages = {names.INPUT_MESSAGES: content.asked, names.OUTPUT_MESSAGES: content.answered}
        return {name: json.dumps(said, default=str) for name, said in messages.items() if said}
    except Exception as error:  # somebody's message that is none; the span goes on without it
        logger.warning("what was said cannot be shown: %s", type(error).__name__)
        return {}
