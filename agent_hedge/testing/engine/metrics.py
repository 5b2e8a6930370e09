"""The engine's state in vLLM's metric names (0.33.0), Prometheus text format."""

from __future__ import annotations

from collections.abc import Mapping

from agent_hedge.testing.serving import Serving

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

FINISHED_REASONS = ("stop", "length", "abort", "error")
"""``abort`` stays at 0 as in the real engine, which forgets an aborted request before it counts it (vllm#31503)."""


def exposition(serving: Serving, model: str, finished: Mapping[str, int]) -> str:
    """Return the metrics page."""
    label = f'engine="0",model_name="{_escaped(model)}"'
    totals = serving.totals
    single = (
        ("num_requests_running", "gauge", "Requests that hold a slot.", serving.running),
        ("num_requests_waiting", "gauge", "Requests in the queue.", serving.waiting),
        ("kv_cache_usage_perc", "gauge", "Share of KV blocks in use, 1 is all.", serving.kv_usage),
        ("prompt_tokens_total", "counter", "Prompt tokens, counted at the first output.", totals.prompt_tokens),
        ("generation_tokens_total", "counter", "Tokens generated.", totals.generation_tokens),
    )
    lines: list[str] = []
    for name, kind, text, value in single:
        lines += _head(name, kind, text)
        lines.append(f"vllm:{name}{{{label}}} {float(value)}")
    lines += _head("request_success_total", "counter", "Requests that ended, by reason.")
    for reason in FINISHED_REASONS:
        lines.append(
            f'vllm:request_success_total{{{label},finished_reason="{reason}"}} {float(finished.get(reason, 0))}'
        )
    return "\n".join(lines) + "\n"


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} {kind}"]


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
