"""Modes: the strictest of code, environment and switches; share, hold-out, batch; forced by the test kit."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from agent_hedge.core.events import Reason
from agent_hedge.core.ports import Refused
from agent_hedge.core.race import PASS
from agent_hedge.core.scope import Forced, Run, forced
from agent_hedge.core.step import Role
from agent_hedge.core.stores import Switch
from agent_hedge.errors import ConfigurationError
from agent_hedge.gates import ControlGate, Mode, ModeGate, Modes
from agent_hedge.gates.mode import drawn
from agent_hedge.testing.fakes import View


def run_of(key: str = "r", *, priority: str = "interactive", tenant: str = "") -> Run:
    return Run(key, clock=lambda: 0.0, priority=priority, tenant=tenant)


def modes_of(mode: str = "on", *, share: float = 1.0, holdout: float = 0.0, env: str | None = None) -> Modes:
    return Modes(mode, share=share, holdout=holdout, environ={} if env is None else {"AGENT_HEDGE_MODE": env})


def reasons(modes: Modes, view: View | None = None, role: Role = Role.HEDGE) -> tuple[Reason | None, Reason | None]:
    view = view or View()
    answers = [gate.admit(view.attempt(role, "b"), view) for gate in (ModeGate(modes), ControlGate(modes))]
    assert all(answer is PASS or isinstance(answer, Refused) for answer in answers)
    first, second = (answer.reason if isinstance(answer, Refused) else None for answer in answers)
    return first, second


@contextmanager
def forcing(value: Forced) -> Iterator[None]:
    token = forced.set(value)
    try:
        yield
    finally:
        forced.reset(token)


# --- the strictest wins -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["on", "shadow", "off"])
@pytest.mark.parametrize("env", [None, "on", "shadow", "off"])
@pytest.mark.parametrize("switch", [None, "on", "shadow", "off"])
def test_r21_the_strictest_of_code_environment_and_switches_wins(
    code: str, env: str | None, switch: str | None
) -> None:
    modes = modes_of(code, env=env)
    if switch:
        modes.set_switches([Switch(scope_kind="fleet", scope="", mode=switch)])
    order = ["on", "shadow", "off"]
    strictest = max((code, env or "on", switch or "on"), key=order.index)
    assert modes.in_force()[0] == strictest
    expected = {"on": (None, None), "shadow": (None, Reason.SHADOW), "off": (Reason.OFF, None)}
    assert reasons(modes) == expected[strictest]


@pytest.mark.parametrize("mode", ["shadow", "off"])
@pytest.mark.parametrize("role", [Role.PRIMARY, Role.RECOVERY])
def test_r21_only_hedges_are_switched_off(mode: str, role: Role) -> None:
    assert reasons(modes_of(mode, holdout=1.0, share=0.0), role=role) == (None, None)


def test_r21_a_refusal_says_where_the_mode_comes_from() -> None:
    view = View()
    switched = modes_of()
    switched.set_switches([Switch(scope_kind="target", scope="b", mode="off", reason="incident 7")])
    for modes, source in (
        (modes_of("off"), "code"),
        (modes_of(env="off"), "AGENT_HEDGE_MODE"),
        (switched, "target b: incident 7"),
    ):
        assert ModeGate(modes).admit(view.attempt(Role.HEDGE, "b"), view) == Refused(Reason.OFF, source)


def test_the_mode_by_code_may_change() -> None:
    modes = modes_of()
    modes.set("off")
    assert modes.in_force() == (Mode.OFF, "code")
    modes.set("on")
    assert reasons(modes) == (None, None)


def test_the_real_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_HEDGE_MODE", " Shadow ")
    assert Modes().in_force() == (Mode.SHADOW, "AGENT_HEDGE_MODE")
    monkeypatch.setenv("AGENT_HEDGE_MODE", "")
    assert Modes().in_force() == (Mode.ON, "code")


# --- switches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "scope", "hit"),
    [
        ("fleet", "", True),
        ("fleet", "*", True),
        ("fleet", "prod", True),
        ("fleet", "staging", False),
        ("target", "b", True),
        ("target", "a", False),
        ("target", "*", True),
        ("node", "plan", True),
        ("node", "act", False),
        ("tenant", "acme", True),
        ("tenant", "other", False),
    ],
)
def test_r21_switches_apply_to_their_scope(kind: str, scope: str, hit: bool) -> None:
    modes = Modes(fleet="prod", environ={})
    modes.set_switches([Switch(scope_kind=kind, scope=scope, mode="off")])
    view = View(run=run_of(tenant="acme"))
    assert reasons(modes, view) == ((Reason.OFF if hit else None), None)


def test_r21_a_switch_expires() -> None:
    now = [100.0]
    modes = Modes(environ={}, clock=lambda: now[0])
    modes.set_switches([Switch(scope_kind="fleet", scope="", mode="off", until=110.0)])
    assert modes.in_force()[0] is Mode.OFF
    now[0] = 110.0
    assert modes.in_force() == (Mode.ON, "code")


def test_r21_drained_targets_are_named_until_they_expire() -> None:
    now = [100.0]
    modes = Modes(environ={}, clock=lambda: now[0])
    modes.set_switches(
        [
            Switch(scope_kind="target", scope="a", mode="drain", until=110.0),
            Switch(scope_kind="target", scope="b", mode="drain"),
        ]
    )
    assert modes.drained() == {"a", "b"}
    assert modes.in_force(target="a")[0] is Mode.ON
    now[0] = 110.0
    assert modes.drained() == {"b"}


@pytest.mark.parametrize(
    ("switch", "everywhere"),
    [
        (Switch(scope_kind="node", scope="plan", mode="drain"), False),
        (Switch(scope_kind="fleet", scope="", mode="drain"), True),
    ],
)
def test_r20_draining_what_cannot_be_drained_stops_hedging_loudly(
    switch: Switch, everywhere: bool, caplog: pytest.LogCaptureFixture
) -> None:
    modes = modes_of()
    with caplog.at_level(logging.ERROR, logger="agent_hedge"):
        modes.set_switches([switch])
    assert "only a target can be drained" in caplog.text
    assert modes.in_force(node="plan")[0] is Mode.OFF
    assert modes.in_force(node="act")[0] is (Mode.OFF if everywhere else Mode.ON)
    modes.set_switches([])
    assert modes.in_force(node="plan")[0] is Mode.ON


def test_an_expiry_that_is_no_number_never_comes() -> None:
    modes = modes_of()
    modes.set_switches([Switch(scope_kind="fleet", scope="", mode="off", until=math.nan)])
    assert modes.in_force()[0] is Mode.OFF


# --- who may hedge ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["on", "shadow"])
def test_batch_runs_never_hedge(mode: str) -> None:
    assert reasons(modes_of(mode), View(run=run_of(priority="batch")))[0] is Reason.BATCH


@pytest.mark.parametrize(("share", "holdout"), [(0.0, 0.0), (0.25, 0.1), (1.0, 0.5), (0.5, 1.0)])
def test_r21_share_and_holdout_draw_runs_independently(share: float, holdout: float) -> None:
    modes, count = modes_of(share=share, holdout=holdout), 4000
    found = [reasons(modes, View(run=run_of(f"run {number}"))) for number in range(count)]
    shared = [second for first, second in found if first is None]
    assert len(shared) / count == pytest.approx(share, abs=0.03)
    assert sum(second is Reason.HOLDOUT for second in shared) == pytest.approx(holdout * len(shared), abs=0.03 * count)


def test_r21_all_steps_of_a_run_share_its_draw() -> None:
    modes = modes_of(share=0.5, holdout=0.5)
    for number in range(50):
        run = run_of(f"run {number}")
        assert len({reasons(modes, View(run=run, step_id=f"step {step}")) for step in range(20)}) == 1


def test_r21_outside_any_run_steps_are_drawn() -> None:
    modes = modes_of(holdout=0.5)
    for run in (None, run_of("")):
        drawn_ = [reasons(modes, View(step_id=f"step {step}", run=run))[1] for step in range(1000)]
        assert drawn_.count(Reason.HOLDOUT) == pytest.approx(500, abs=60)


def test_r21_a_draw_is_the_same_in_every_process() -> None:
    names = "".join(str(n) for n in range(10) if drawn("share", View(run=run_of(f"run {n}")), 0.5))
    assert names == "035"
    assert drawn("share", View(run=run_of("\ud800")), 0.5) in (True, False)


# --- forced by the test kit -------------------------------------------------------------------------------------------


def test_forced_off_hedges_nothing() -> None:
    with forcing(Forced(hedge=False)):
        assert reasons(modes_of())[0] is Reason.OFF
        assert reasons(modes_of(), role=Role.RECOVERY) == (None, None)


def test_forced_on_hedges_every_step_but_not_against_the_mode() -> None:
    with forcing(Forced(hedge=True)):
        assert reasons(modes_of(share=0.0, holdout=1.0)) == (None, None)
        assert reasons(modes_of("off"))[0] is Reason.OFF
        assert reasons(modes_of("shadow"))[1] is Reason.SHADOW


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Modes("maybe", environ={}), "mode must be on, shadow or off, got 'maybe'"),
        (lambda: Modes(None, environ={}), "got None"),  # type: ignore[arg-type]
        (lambda: Modes(environ={"AGENT_HEDGE_MODE": "true"}), "AGENT_HEDGE_MODE must be on, shadow or off, got 'true'"),
        (lambda: modes_of().set("drain"), "got 'drain'"),
        (lambda: modes_of(share=1.1), "share must be a ratio from 0 to 1, got 1.1"),
        (lambda: modes_of(share=-0.1), "share .* got -0.1"),
        (lambda: modes_of(share=math.nan), "share .* got nan"),
        (lambda: modes_of(share=True), "share .* got True"),
        (lambda: modes_of(holdout=2), "holdout must be a ratio from 0 to 1, got 2"),
    ],
)
def test_r20_modes_that_cannot_be_meant(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()
