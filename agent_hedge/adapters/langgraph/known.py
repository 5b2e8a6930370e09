"""What code outside the user's own is known to do: the tables behind "cannot see"."""

from __future__ import annotations

FRAMEWORK = frozenset({"agent_hedge", "langchain", "langchain_core", "langgraph", "langsmith", "pydantic"})
"""Packages whose functions do nothing but what the objects they carry do; those objects are looked at."""

QUIET_PACKAGES = frozenset({"annotated_types", "numpy", "pydantic_core", "tiktoken", "typing_extensions"})
"""Third-party packages that compute and touch nothing."""

OUTSIDE_STDLIB = frozenset(
    {
        *("_socket", "_sqlite3", "code", "ctypes", "dbm", "ftplib", "http", "imaplib", "importlib", "multiprocessing"),
        *("nntplib", "nt", "os", "poplib", "posix", "pty", "runpy", "shelve", "shutil", "smtplib", "socket"),
        *("socketserver", "sqlite3", "ssl", "subprocess", "telnetlib", "urllib", "webbrowser", "winreg", "xmlrpc"),
    }
)
"""Modules of the standard library that reach out of the process."""

QUIET_NAMES = frozenset(
    {
        *("http.HTTPStatus", "os.cpu_count", "os.fspath", "os.getenv", "os.getpid", "os.urandom"),
        *(
            "posix.cpu_count",
            "posix.fspath",
            "posix.getpid",
            "posix.urandom",
            "nt.cpu_count",
            "nt.getpid",
            "nt.urandom",
        ),
    }
)
QUIET_MODULES = ("urllib.parse", "os.path", "posixpath", "ntpath")
"""The harmless corners of those modules."""

OUTSIDE_NAMES = frozenset(
    {
        *("asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell", "asyncio.open_connection"),
        *("asyncio.open_unix_connection", "asyncio.start_server", "asyncio.start_unix_server"),
        *("builtins.__import__", "builtins.breakpoint", "builtins.compile", "builtins.eval", "builtins.exec"),
        *(
            "builtins.globals",
            "builtins.input",
            "builtins.locals",
            "builtins.open",
            "builtins.vars",
            "_io.open",
            "io.open",
        ),
    }
)
"""Single functions that reach out of the process, or run what only run time knows."""

ACTING_CLASSES = frozenset({"builtins", "io", "_io", "pathlib", "tempfile"})
"""Modules whose objects can act later: their methods are judged by name like those of any unknown value."""

NETWORK_PACKAGES = frozenset(
    {
        *(
            "aiohttp",
            "anthropic",
            "asyncpg",
            "boto3",
            "botocore",
            "elasticsearch",
            "google",
            "grpc",
            "httpcore",
            "httpx",
        ),
        *("kafka", "kubernetes", "langgraph_sdk", "openai", "paramiko", "pika", "psycopg", "psycopg2", "pymongo"),
        *("redis", "requests", "sqlalchemy", "stripe", "twilio", "urllib3", "websockets"),
    }
)
"""Packages that are there to talk to something else: named in the reason, so that it can be understood."""

PLAIN_METHODS = frozenset(
    name
    for kind in (str, bytes, list, dict, set, tuple, int, float)
    for name in dir(kind)
    if not name.startswith("_") or name in {"__init__", "__len__"}
) | {
    *("appendleft", "popleft", "extendleft", "rotate", "total", "most_common", "elements"),
    *("date", "isoformat", "now", "strftime", "time", "timestamp", "today", "total_seconds", "weekday"),
    *(
        "end",
        "findall",
        "finditer",
        "fullmatch",
        "group",
        "groupdict",
        "groups",
        "match",
        "search",
        "span",
        "start",
        "sub",
    ),
    *("model_copy", "model_dump", "model_dump_json", "dict", "json", "pretty_print", "pretty_repr"),
    *("add_done_callback", "cancel", "cancelled", "done", "exception", "result", "with_traceback", "add_note"),
    *("exists", "is_dir", "is_file", "read_bytes", "read_text", "as_posix"),
    *("debug", "error", "info", "log", "warning", "tolist", "item"),
}
"""Methods of plain values. On a value made at run time these are taken for what they are on a list, text or message."""

MAPPING_METHODS = frozenset({"copy", "get", "items", "keys", "values"})
"""What the run's config and context are asked for."""

RUN_VERBS = frozenset(
    {
        *("invoke", "ainvoke", "stream", "astream", "abatch", "atransform", "astream_events", "func", "coroutine"),
        *("run", "arun", "acall", "execute", "aexecute", "submit", "send", "asend", "post", "put", "patch", "delete"),
        *("publish", "write", "commit"),
    }
)
"""Attributes that are there to be called: picking one up from a value made at run time is treated as calling it."""

DERIVING = frozenset(
    {
        "assign",
        "map",
        "pick",
        "pipe",
        "with_alisteners",
        "with_config",
        "with_fallbacks",
        "with_listeners",
        "with_retry",
    }
    | {"with_structured_output", "with_types"}
)
"""Methods of a Runnable that return it, wrapped: what runs is still seen."""
