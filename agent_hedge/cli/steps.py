"""The steps of a run as people read them: why each was or was not hedged, when, after what delay, on what grounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def explained(steps: Sequence[Row], attempts: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the steps in the order they began, with what is known of each (times in seconds).

    `at_s`: after the first step began. `slack_s`: what the run had left then. `due_after_s`: the delay after which a
    hedge was due, `d0_s`: the same without a plan, `price`: the expected lateness in seconds that a hedge had to save.
    `hedged_after_s`: when the first hedge was sent.
    """
    steps = sorted(steps, key=lambda step: step.get("started_at") or 0.0)
    sent: dict[str, float] = {}
    for attempt in attempts:
        if attempt["role"] == "hedge" and attempt["started_at"] is not None:
            sent[attempt["step_id"]] = min(attempt["started_at"], sent.get(attempt["step_id"], attempt["started_at"]))
    return [_explained(number, step, steps[0], sent.get(step["step_id"])) for number, step in enumerate(steps, start=1)]


def _explained(number: int, step: Row, first: Row, sent: float | None) -> dict[str, Any]:
    began = step.get("started_at")
    slack = step.get("slack_s")
    return {
        "step": number,
        "node": step.get("node") or step.get("key"),
        "at_s": None if began is None else began - first["started_at"],
        "decision": step.get("decision"),
        "reason": step.get("reason"),
        "detail": step.get("detail"),
        "due_after_s": step.get("trigger_s"),
        "hedged_after_s": None if sent is None or began is None else sent - began,
        "hedges": step.get("hedges") or 0,
        "slack_s": step.get("deadline_s") if slack is None else slack,
        "d0_s": step.get("d0"),
        "price": step.get("price"),
        "outcome": step.get("outcome"),
        "winner": step.get("winner"),
        "ttft_s": step.get("ttft_s"),
        "elapsed_s": step.get("elapsed_s"),
        "error": step.get("error"),
    }


def line(step: Row) -> str:
    """Return one step as one line."""
    at = f"+{step['at_s']:.3f} s" if step["at_s"] is not None else ""
    said = f"{step['step']:>3}  {at:>11}  {step['node'] or '-'}: {_hedged(step)}; {_ended(step)}"
    grounds = _grounds(step)
    return f"{said} [{', '.join(grounds)}]" if grounds else said


def _hedged(step: Row) -> str:
    due = step["due_after_s"]
    after = "" if due is None else f" after {due:.3f} s"
    why = f"{step['reason']} ({step['detail']})" if step["detail"] else step["reason"]
    decision = step["decision"]
    if decision == "hedged":
        sent = "" if step["hedged_after_s"] is None else f" after {step['hedged_after_s']:.3f} s"
        more = f" ({step['hedges']} hedges)" if step["hedges"] > 1 else ""
        return f"hedged{sent}{more}" + (f", a further hedge was refused: {why}" if why else "")
    if decision == "refused":
        return f"not hedged, due{after} but refused: {why}" if after else f"not hedged: {why}"
    if decision == "not_due":
        return f"not hedged, due only{after}"
    if decision is None:
        return "still open, or its process has died"
    if why:
        return f"not hedged: {why}"
    return "not hedged: the plan saves its hedges for others" if step["price"] is not None else "not hedged: never due"


def _ended(step: Row) -> str:
    ttft, winner = step["ttft_s"], step["winner"]
    if step["outcome"] == "answered":
        return f"{winner} answered" + ("" if ttft is None else f" after {ttft:.3f} s")
    if step["outcome"] is None:
        return "no end recorded"
    error = f" ({step['error']})" if step["error"] else ""
    elapsed = "" if step["elapsed_s"] is None else f" after {step['elapsed_s']:.3f} s"
    return f"{step['outcome']}{elapsed}{error}"


def _grounds(step: Row) -> list[str]:
    grounds = []
    if step["slack_s"] is not None:
        grounds.append(f"{step['slack_s']:.3f} s left")
    if step["price"] is not None:
        static = "never" if step["d0_s"] is None else f"{step['d0_s']:.3f} s"
        grounds += [f"without a plan due after {static}", f"price {step['price']:.3g} s"]
    return grounds
