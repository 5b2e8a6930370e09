"""Names for replicas from their base URLs: host and port, nothing secret."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from urllib.parse import SplitResult, urlsplit

from agent_hedge.errors import ConfigurationError


def replica_names(urls: Iterable[str]) -> dict[str, str]:
    """Return the URLs by name, in order: ``host:port``, with the path where several share a host and port.

    User names, passwords, queries and fragments never enter a name. Raises `ConfigurationError` (see `_split`).
    """
    if isinstance(urls, str):
        raise ConfigurationError(f"urls must be a list of URLs, got the text {_shown(urls)!r}")
    split = [(url, _split(url)) for url in urls]
    if not split:
        raise ConfigurationError("at least one URL is needed, got none")
    hosts = Counter(_host(parts) for _, parts in split)
    named: dict[str, str] = {}
    for url, parts in split:
        name = _host(parts)
        if hosts[name] > 1:
            name += parts.path.rstrip("/")
        if name in named:
            raise ConfigurationError(f"two replicas have the URL {_shown(url)!r}")
        named[name] = url
    return named


def _split(url: object) -> SplitResult:
    """Split an http or https URL with a host; anything else is a `ConfigurationError`."""
    if not isinstance(url, str):
        raise ConfigurationError(f"a replica's URL must be text, got {url!r:.80}")
    if not url.isprintable() or " " in url:
        raise ConfigurationError(f"a replica's URL must not hold blanks or control characters, got {_shown(url)!r}")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ConfigurationError(f"a replica's URL cannot be read ({error}), got {_shown(url)!r}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(f"a replica's URL must look like http://host:port/path, got {_shown(url)!r}")
    return parts


def _host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return host if parts.port is None else f"{host}:{parts.port}"


def _shown(url: str) -> str:
    """Return the URL without what may be secret in it (R18)."""
    scheme, mark, rest = url.partition("://")
    rest = rest.partition("?")[0].partition("#")[0]
    authority, slash, path = rest.partition("/")
    return f"{scheme}{mark}{authority.rpartition('@')[2]}{slash}{path}"[:200] if mark else url[:80]
