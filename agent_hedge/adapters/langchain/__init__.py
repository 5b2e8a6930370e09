"""LangChain: chat models whose calls are hedged. `Hedger.chat_model` is the way in."""

try:
    import langchain_core  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "hedged chat models need langchain-core: pip install 'agent-hedge[langgraph]'", name="langchain_core"
    ) from missing
