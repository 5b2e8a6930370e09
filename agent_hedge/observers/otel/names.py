"""Every name we emit, as plain strings (DESIGN 5.15).

The GenAI conventions are in development and their Python constants are deprecated already, so nothing is imported.
Where a name has changed, the old one is emitted, and the new one after
``OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental`` (semantic-conventions-genai v0.1.0).
"""

from __future__ import annotations

import logging
import os

logger = logging.getLogger("agent_hedge.otel")

SCOPE = "agent_hedge"

# --- spans and events ---------------------------------------------------------------------------------------------

RUN = "agent_hedge.run"
STEP = "agent_hedge.step"
ATTEMPT = "agent_hedge.attempt"

TRIGGER_ARMED = "agent_hedge.trigger_armed"
TRIGGER_LATE = "agent_hedge.trigger_late"
HEDGE_DUE = "agent_hedge.hedge_due"
REFUSED = "agent_hedge.refused"
COMMIT = "agent_hedge.commit"
CANCEL_SENT = "agent_hedge.cancel_sent"
RELEASED = "agent_hedge.released"
FENCE = "agent_hedge.fence"
CLAIM = "agent_hedge.claim"

# --- attributes -----------------------------------------------------------------------------------------------------

RUN_KEY = "agent_hedge.run.key"
RUN_GENERATION = "agent_hedge.run.generation"
RUN_STEPS = "agent_hedge.run.steps"
RUN_HEDGES = "agent_hedge.run.hedges"
RUN_RECOVERIES = "agent_hedge.run.recoveries"
TENANT = "agent_hedge.tenant"
NODE = "agent_hedge.node"
MODEL = "agent_hedge.model"
TARGET = "agent_hedge.target"
DOMAIN = "agent_hedge.domain"
ROLE = "agent_hedge.attempt.role"
NUMBER = "agent_hedge.attempt.number"
ATTEMPT_ID = "agent_hedge.attempt.id"
HEDGE_OF = "agent_hedge.attempt.hedge_of_span_id"
TRIGGER_DELAY = "agent_hedge.attempt.trigger_delay"
TRIGGER = "agent_hedge.trigger"
OUTCOME = "agent_hedge.outcome"
FAILURE = "agent_hedge.failure"
REASON = "agent_hedge.reason"
DETAIL = "agent_hedge.detail"
CAUSE = "agent_hedge.cancel.cause"
PHASE = "agent_hedge.receipt.phase"
CERTAINTY = "agent_hedge.usage.certainty"
RECEIVED = "agent_hedge.usage.received_output_tokens"
CONNECT = "agent_hedge.time.connect"
HEADERS = "agent_hedge.time.headers"
QUEUE = "agent_hedge.time.queue"
TTFT = "agent_hedge.time.first_token"
DECODE = "agent_hedge.time.decode"
LONGEST_GAP = "agent_hedge.time.longest_chunk_gap"
TOOL_WAIT = "agent_hedge.time.tool_wait"
CANCEL_TO_RELEASE = "agent_hedge.time.cancel_to_release"
DEADLINE_LEFT = "agent_hedge.deadline.left"
WINNER = "agent_hedge.winner"
LAUNCHED = "agent_hedge.attempts"
HEDGES = "agent_hedge.hedges"
BY_CLAIM = "agent_hedge.by_claim"
TOOL = "agent_hedge.tool"
PASSED = "agent_hedge.fence.passed"
ANSWER = "agent_hedge.claim.answer"
REOPENED = "agent_hedge.step.reopened"
DUE_IN = "agent_hedge.due_in"
LATE_BY = "agent_hedge.late_by"

ERROR_TYPE = "error.type"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"

FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
SYSTEM_OLD = "gen_ai.system"
"""Before v1.37 the provider's attribute; still what most backends read, so both are set by default."""


def latest() -> bool:
    """Whether only the newest GenAI names are wanted."""
    return "gen_ai_latest_experimental" in os.environ.get("OTEL_SEMCONV_STABILITY_OPT_IN", "").replace(" ", "").split(
        ","
    )


CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The environment's word on content, as OpenTelemetry's own instrumentations read it."""
_ON, _OFF = ("true", "span_only", "span_and_event"), ("", "false", "no_content")


def captures_content() -> bool:
    """Whether the environment asks for content on spans. There are no events of ours that could carry it."""
    said = os.environ.get(CAPTURE, "").strip().lower()
    if said not in (*_ON, *_OFF):
        logger.warning("%s=%s: no content is captured; SPAN_ONLY puts it on spans", CAPTURE, said)
    return said in _ON
