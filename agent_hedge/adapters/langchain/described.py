"""What telemetry may say of a member: provider, model, server. Never a key, a path or a parameter of its address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from langchain_core.language_models import BaseChatModel

from agent_hedge.observers.described import Described

_ADDRESSES = ("openai_api_base", "azure_endpoint", "anthropic_api_url", "base_url", "endpoint_url")
_PORTS = {"https": 443, "http": 80}


def describe(model: BaseChatModel, bound: Mapping[str, Any]) -> Described:
    """Return what a chat model says of itself."""
    params = model._get_ls_params(**bound)
    address, port = _server(model)
    return Described(
        provider=str(params.get("ls_provider") or ""),
        model=str(params.get("ls_model_name") or ""),
        address=address,
        port=port,
    )


def _server(model: BaseChatModel) -> tuple[str, int | None]:
    for name in _ADDRESSES:
        value = getattr(model, name, None)
        if isinstance(value, str) and value:
            try:
                url = urlsplit(value)
                return url.hostname or "", url.port or _PORTS.get(url.scheme)
            except ValueError:
                continue
    return "", None
