"""Listeners: they hear every event of every race, change nothing, and never fail a step.

`accounting` keeps the books, `otel` speaks OpenTelemetry (extra ``otel``), `logging` the standard library's logging.
Whatever has an `on_event` is an observer (``agent_hedge.core.ports.Observer``).
"""
