"""``agent-hedge demo`` on few runs: what it prints, what it refuses, and that nothing of it stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agent_hedge.cli import __main__ as root
from agent_hedge.cli.demo import draws, words
from agent_hedge.cli.demo.statistics import percentile
from agent_hedge.testing.profiles import Recorded
from tests.conftest import HUNG_S

KEYS = {
    "runs", "run_p50_s", "run_p95_s", "run_p99_s", "ttft_sum_p99_s", "ttft_p50_s", "ttft_p99_s", "hedge_rate",
    "win_rate", "wasted_tokens", "release_p50_s", "release_p99_s", "deadline_misses",
}  # fmt: skip
DEMO = [sys.executable, "-m", "agent_hedge.cli.__main__", "demo"]


def demo(*options: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DEMO, *options], capture_output=True, text=True, timeout=10 * HUNG_S, cwd=cwd)


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Times of a fast endpoint with a straggler now and then."""
    path = tmp_path_factory.mktemp("replay") / "times.csv"
    rows = "\n".join("2.0" if row % 40 == 7 else f"0.{100 + row % 7}" for row in range(400))
    path.write_text(f"ttft_s\n{rows}\n")
    return path


@pytest.fixture(scope="module")
def as_json(series: Path) -> dict[str, Any]:
    done = demo("--runs", "6", "--replay", str(series), "--json", cwd=series.parent)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_json_has_the_agreed_shape(as_json: dict[str, Any], series: Path) -> None:
    assert list(as_json["policies"]) == ["none", "fixed", "quantile"]
    for figures in as_json["policies"].values():
        assert figures.keys() == KEYS
        assert figures["runs"] == 6
        assert 0 < figures["run_p50_s"] <= figures["run_p95_s"] <= figures["run_p99_s"]
    assert (series.parent / as_json["page"]).is_file()
    assert as_json["compression"] >= 1


def test_without_hedging_nothing_is_hedged(as_json: dict[str, Any]) -> None:
    none = as_json["policies"]["none"]
    assert (none["hedge_rate"], none["wasted_tokens"]) == (0, 0)
    assert none["win_rate"] is none["release_p50_s"] is None


def test_the_slowest_calls_are_the_recorded_ones(as_json: dict[str, Any]) -> None:
    """What is shown is in uncompressed seconds: no wait can be shorter than what the file says."""
    assert as_json["policies"]["none"]["ttft_p50_s"] >= 0.1
    assert as_json["policies"]["none"]["ttft_p99_s"] >= 1.9


def test_the_page_needs_nothing_else(as_json: dict[str, Any], series: Path) -> None:
    page = (series.parent / as_json["page"]).read_text()
    assert page.count("<svg") == 3
    for outside in ("http-equiv", "<script", "<link", "src=", "url(", "@import"):
        assert outside not in page
    assert "$" not in page


def test_the_profile_is_named_and_cited() -> None:
    drawn = draws.shared_endpoint(20, 0)
    said = words.opening(drawn, draws.tempo(drawn), 300)
    for part in ("shared-endpoint", "github.com/kwindla/aiewf-eval", "MIT", "times faster than real"):
        assert part in said


def test_table_and_page_of_a_single_run(tmp_path: Path, series: Path) -> None:
    done = demo("--runs", "1", "--replay", str(series), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for part in ("no hedging", "summed TTFT per run, p99", "hedges per call", "times faster than real"):
        assert part in done.stdout
    page = tmp_path / "agent-hedge-demo.html"
    assert str(page) in done.stdout.replace("\n", "")
    assert page.is_file()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot read the replay file"),
        ("latency\n3\n", "has no column ttft_ms or ttft_s; columns found: latency"),
        ("ttft_ms\n12\nsoon\n", "line 3: ttft_ms is 'soon', not a time"),
        ("ttft_ms\n", "has no value"),
    ],
)
def test_r20_a_replay_that_cannot_be_meant(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str | None, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "replay.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit) as ended:
        root.main(["demo", "--replay", str(path)])
    out, err = capfd.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (2, "", 1)
    assert said in err


@pytest.mark.parametrize(
    "options",
    [
        ["--runs", "0"],
        ["--seed", "-1"],
        ["--page", "no/such/folder/x.html"],
        ["--otlp", "127.0.0.1:4318"],
        ["--otlp", "http://127.0.0.1:9"],  # nobody is there
        ["now"],
    ],
)
def test_r20_options_that_cannot_be_meant(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("no_proxy", "NO_PROXY"):  # the command sets them for its process, which is not this one
        monkeypatch.setenv(name, "")
    with pytest.raises(SystemExit) as ended:
        root.main(["demo", *options])
    assert ended.value.code == 2
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("processes", [3, 6], ids=["while-starting", "at-work"])
def test_ctrl_c_leaves_nothing_behind(processes: int, tmp_path: Path) -> None:
    mark = {**os.environ, "AGENT_HEDGE_DEMO_TEST": str(tmp_path)}
    process = subprocess.Popen(
        [*DEMO, "--runs", "300"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, env=mark,
        start_new_session=True,
    )  # fmt: skip
    _wait(lambda: len(_marked(str(tmp_path))) >= processes)  # itself, two engines, three clients, and Python's own
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the whole group
    _, err = process.communicate(timeout=HUNG_S)
    assert process.returncode == 130
    assert err == b"agent-hedge: interrupted\n"
    _wait(lambda: not _marked(str(tmp_path)))
    assert not list(tmp_path.iterdir())


def _marked(value: str) -> list[str]:
    """Return the living processes with this value in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"AGENT_HEDGE_DEMO_TEST={value}".encode() in (entry / "environ").read_bytes():
                found.append(entry.name)
        except OSError:
            continue
    return found


def _wait(holds: Any, seconds: float = 2 * HUNG_S) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)  # another process's progress cannot be awaited


def _recorded(drawn: draws.Draws) -> tuple[Recorded, Recorded]:
    primary, copy = drawn.profiles
    assert isinstance(primary, Recorded)
    assert isinstance(copy, Recorded)
    return primary, copy


def test_a_run_takes_turns_of_one_conversation_and_its_copies_the_same_turns_of_others(tmp_path: Path) -> None:
    path = tmp_path / "chains.csv"
    rows = [f"{chain},{turn},{chain}.{turn:02}" for chain in range(1, 6) for turn in range(30)]
    path.write_text("chain,turn,ttft_s\n" + "\n".join(rows))
    primary, copy = _recorded(draws.replay(path, runs=40, seed=3))
    for run in range(40):
        part = slice(run * draws.STEPS, (run + 1) * draws.STEPS)
        mine, copies = primary.seconds[part], copy.seconds[part]
        turns = [round(seconds * 100) % 100 for seconds in mine]
        assert len({int(seconds) for seconds in mine}) == 1
        assert turns == list(range(turns[0], turns[0] + draws.STEPS))
        assert turns[0] >= 1  # the first turn meets a cold cache
        assert [round(seconds * 100) % 100 for seconds in copies] == turns
        assert int(mine[0]) not in {int(seconds) for seconds in copies}


def test_a_series_shorter_than_a_run_goes_round(tmp_path: Path) -> None:
    path = tmp_path / "short.csv"
    path.write_text("ttft_ms\n100\n200\n")
    primary, copy = _recorded(draws.replay(path, runs=2, seed=0))
    assert sorted(set(primary.seconds)) == [0.1, 0.2]
    assert len(primary.seconds) == len(copy.seconds) == 2 * draws.STEPS


def test_a_seed_names_the_draws(tmp_path: Path) -> None:
    one, same, other = (draws.shared_endpoint(20, seed) for seed in (4, 4, 5))
    assert one == same
    assert one.mean != other.mean


@pytest.mark.parametrize(("median", "mean"), [(0.5, 0.7), (0.01, 0.02), (8.0, 30.0)])
def test_the_tempo_keeps_the_rate_and_the_least_median(median: float, mean: float) -> None:
    drawn = draws.shared_endpoint(1, 0)
    found = draws.tempo(draws.Draws("", "", drawn.profiles, (0, 1), mean, median))
    assert found.compression >= 1
    assert found.in_flight * found.compression / mean <= draws.RATE * 1.01
    assert found.compression == 1 or median / found.compression >= draws.LEAST_MEDIAN_S


@pytest.mark.parametrize(("q", "value"), [(0, 1), (0.5, 2.5), (0.99, 3.97), (1, 4)])
def test_percentile(q: float, value: float) -> None:
    assert percentile([3, 1, 4, 2], q) == pytest.approx(value)
