"""A request as faults and replies see it: headers and body, with the few readings of a chat body they need."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any


class BadRequestError(Exception):
    """The body is not what the endpoint takes; the text goes to the client with status 400."""


@dataclass(frozen=True)
class Request:
    """One HTTP request, read to its end. Header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @cached_property
    def json(self) -> dict[str, Any]:
        """The body as a JSON object.

        Raises:
            BadRequestError: it is none.
        """
        try:
            value = json.loads(self.body)
        except ValueError as error:
            raise BadRequestError(f"the body is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise BadRequestError("the body must be a JSON object")
        return value

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The chat messages, oldest first."""
        value = self.json.get("messages")
        if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
            raise BadRequestError("'messages' must be a non-empty list of objects")
        return value

    @property
    def last_role(self) -> str:
        """Who spoke last (``user``, ``tool``, ...)."""
        return str(self.messages[-1].get("role", ""))

    @cached_property
    def prompt(self) -> str:
        """The text of the last user message."""
        return next((text_of(message) for message in reversed(self.messages) if message.get("role") == "user"), "")

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The function declarations (``name``, ``parameters``, ...) of the tools the model may call."""
        tools = self.json.get("tools") or []
        if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
            raise BadRequestError("'tools' must be a list of objects")
        functions = [tool["function"] for tool in tools if tool.get("type") == "function" and "function" in tool]
        if not all(isinstance(function, dict) and function.get("name") for function in functions):
            raise BadRequestError("every function tool needs a 'name'")
        return functions

    @property
    def prompt_tokens(self) -> int:
        """An estimate of the prompt's size: four characters a token, tool declarations included."""
        return 1 + sum(len(json.dumps(self.json.get(part) or "")) for part in ("messages", "tools")) // 4


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message, whether its content is a string or a list of parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict) and "text" in part)
