"""LangChain: chat models whose calls are hedged. `Hedger.chat_model` is the way in."""
