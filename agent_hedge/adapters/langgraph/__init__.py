"""LangGraph: what a graph may do is read before it runs, and its nodes are raced while it runs."""

try:
    import langgraph.errors  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "nodes, graphs and guarded tools need langgraph: pip install 'agent-hedge[langgraph]'", name="langgraph"
    ) from missing
