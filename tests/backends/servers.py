"""Phoenix and MLflow as processes on 127.0.0.1, and what their APIs say of a run."""

from __future__ import annotations

import json
import os
import shutil
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from agent_hedge.testing.postgres import free_port
from tests.servers import serving

from .run import PROJECT, Sent

TAKEN_IN_S = 30.0


@dataclass(frozen=True, slots=True)
class Span:
    """A span as a backend gave it back."""

    id: str
    parent: str | None
    name: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Phoenix:
    """https://arize.com/docs/phoenix; takes OTLP at ``/v1/traces``."""

    url: str
    headers: Mapping[str, str]

    def spans(self, sent: Sent) -> list[Span]:
        found = _json(f"{self.url}/v1/projects/{PROJECT}/spans?limit=1000&trace_id={sent.trace_id}")["data"]
        return [
            Span(one["context"]["span_id"], one["parent_id"], one["name"], one["attributes"])
            for one in sorted(found, key=lambda one: one["start_time"])
        ]

    def tokens(self, sent: Sent) -> tuple[int, int]:
        """Return what it has added up itself: input and output tokens of the project, which has this run only."""
        query = "{projects{edges{node{name tokenCountPrompt tokenCountCompletion}}}}"
        edges = _json(f"{self.url}/graphql", {"query": query})["data"]["projects"]["edges"]
        (node,) = (edge["node"] for edge in edges if edge["node"]["name"] == PROJECT)
        return int(node["tokenCountPrompt"]), int(node["tokenCountCompletion"])


@dataclass(frozen=True, slots=True)
class MLflow:
    """https://mlflow.org/docs/latest/genai/tracing; takes OTLP at ``/v1/traces`` for an experiment."""

    url: str
    headers: Mapping[str, str]

    def spans(self, sent: Sent) -> list[Span]:
        found = self._trace(sent)["spans"]
        return [
            Span(
                b64decode(one["span_id"]).hex(),
                b64decode(one["parent_span_id"]).hex() if one.get("parent_span_id") else None,
                one["name"],
                {pair["key"]: next(iter(pair["value"].values())) for pair in one["attributes"]},
            )
            for one in sorted(found, key=lambda one: one["start_time_unix_nano"])
        ]

    def tokens(self, sent: Sent) -> tuple[int, int]:
        """Return what it has added up itself: input and output tokens of the trace."""
        usage = json.loads(self._trace(sent)["trace_info"]["trace_metadata"]["mlflow.trace.tokenUsage"])
        return usage["input_tokens"], usage["output_tokens"]

    def _trace(self, sent: Sent) -> Any:
        return _json(f"{self.url}/api/3.0/mlflow/traces/get?trace_id=tr-{sent.trace_id}")["trace"]


Backend = Phoenix | MLflow


@contextmanager
def phoenix(folder: Path) -> Iterator[Phoenix]:
    """Run Phoenix in `folder`. (It binds its gRPC port on every address: see README.md.)"""
    port = free_port()
    environment = {
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
    }
    url = f"http://127.0.0.1:{port}"
    with serving([_program("phoenix"), "serve"], ready=f"{url}/healthz", folder=folder, environment=environment):
        yield Phoenix(url, {})


@contextmanager
def mlflow(folder: Path) -> Iterator[MLflow]:
    """Run MLflow in `folder`, on a SQLite file."""
    port = free_port()
    command = [
        *(_program("mlflow"), "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--default-artifact-root", str(folder / "artifacts")),
    ]
    environment = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    url = f"http://127.0.0.1:{port}"
    with serving(command, ready=f"{url}/health", folder=folder, environment=environment):
        yield MLflow(url, {"x-mlflow-experiment-id": "0"})


def _program(name: str) -> str:
    found = os.environ.get(name.upper()) or shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"no {name}: set {name.upper()} to its program (tests/backends/README.md)")
    return found


def _json(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data=data, headers={"content-type": "application/json"})
    with urlopen(request, timeout=30) as answer:
        return json.load(answer)
