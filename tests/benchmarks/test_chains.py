"""The benchmark of chains reads any CSV that can be meant, and says in one line why it cannot read another."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.benchmarks import chains


def written(folder: Path, text: str) -> Path:
    path = folder / "chains.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_turn_0_and_rows_without_a_time_are_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, "turn,ttft_ms,chain\n2,300,a\n0,900,a\n1,200,a\n3,,a\n1,250,b\n")
    assert chains.read_chains(path) == [{1: 0.2, 2: 0.3}, {1: 0.25}]


def test_seconds_are_taken_as_seconds(tmp_path: Path) -> None:
    path = written(tmp_path, "\ufeffchain,turn,ttft_s\na,1,0.5\nb,1,0.25\n")
    assert chains.read_chains(path) == [{1: 0.5}, {1: 0.25}]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "columns"),
        ("chain,ttft_ms\na,1\n", "turn"),
        ("chain,turn,latency\na,1,1\n", "ttft_ms"),
        ("chain,turn,ttft_ms\na,one,1\n", "line 2"),
        ("chain,turn,ttft_ms\na,1,1\na,2,fast\n", "line 3"),
        ("chain,turn,ttft_ms\na,1,-1\n", "line 2"),
        ("chain,turn,ttft_ms\na,1,inf\n", "line 2"),
        ("chain,turn,ttft_ms\na\n", "line 2"),
        ("chain,turn,ttft_ms\na,1,100\na,2,100\n", "two chains"),
        ("chain,turn,ttft_ms\na,0,100\nb,0,100\n", "two chains"),
    ],
)
def test_r20_files_that_cannot_be_meant(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(SystemExit, match=named):
        chains.read_chains(written(tmp_path, text))


def test_r20_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"gone\.csv"):
        chains.read_chains(tmp_path / "gone.csv")


def test_a_light_series_is_bounded_and_the_third_attempt_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(1)
    rows = [f"{chain},{turn},{draw.uniform(300, 600)}" for chain in range(10) for turn in range(1, 11)]
    path = written(tmp_path, "chain,turn,ttft_ms\n" + "\n".join(rows))
    assert chains.main([str(path), "--draws", "30", "--seed", "4"]) == 0
    told = capsys.readouterr().out
    assert "met     extra dispatches, light tail" in told
    assert "the third attempt: p95 +0.00%" in told


def test_as_json_the_figures_of_both_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "chain,turn,ttft_ms\n" + "\n".join(f"{chain},1,400" for chain in range(10)))
    assert chains.main(["--draws", "20", str(path), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["unhedged"] == {"p50_s": 0.4, "p95_s": 0.4, "p99_s": 0.4, "worst2_s": pytest.approx(0.4)}
    assert set(figures) >= {"hedged", "hedge_rate", "win_rate", "two_attempts"}
