"""Tools and what running them twice would do: declarations, the registry, the fence, the ledger."""
