"""Is an answer acceptable? The user's own function, or the parser of a structured output.

A judge gets the name of the member that answered and its message; it returns None, or why the answer is rejected. A
rejected answer is a recoverable failure: another attempt is due at once. Judges see whole answers, so the attempts of
a judged step run on side by side after their first token, and both decode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from json import JSONDecodeError
from typing import Any, Protocol

from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable
from pydantic import ValidationError

from agent_hedge.errors import AnswerRejected


class Judge(Protocol):
    """See the module.

    `forgives`: where every answer is rejected, the primary's is given to the caller all the same. `errors`: what a
    member raises where its own client has judged first, and rejected.
    """

    @property
    def forgives(self) -> bool: ...
    @property
    def errors(self) -> tuple[type[Exception], ...]: ...

    def __call__(self, member: str, message: AIMessage) -> AnswerRejected | None: ...


class Accepts:
    """Asks the user's function; where it accepts no answer, the step fails with `AnswerRejected`."""

    forgives = False
    errors = ()

    def __init__(self, accept: Callable[[AIMessage], bool]) -> None:
        self._accept = accept

    def __call__(self, member: str, message: AIMessage) -> AnswerRejected | None:
        return None if self._accept(message) else AnswerRejected()


class Parses:
    """Asks the parser of the member that answered.

    Where no answer parses, the caller gets the primary's, whose parser then fails in front of them as without us.
    """

    forgives = True
    errors = (ValidationError, OutputParserException, JSONDecodeError)

    def __init__(self, parsers: Mapping[str, Runnable[Any, Any]], *, include_raw: bool) -> None:
        self._parsers = parsers
        self._include_raw = include_raw

    def __call__(self, member: str, message: AIMessage) -> AnswerRejected | None:
        try:
            parsed = self._parsers[member].invoke(message)  # seen by nobody: the attempt is silent (R5)
            if self._include_raw:
                if parsed["parsing_error"] is not None:
                    raise parsed["parsing_error"]
                parsed = parsed["parsed"]
        except Exception as error:
            rejected = AnswerRejected("An attempt answered, and its answer does not parse.")
            rejected.__cause__ = error
            return rejected
        return AnswerRejected("An attempt answered without what was to be parsed.") if parsed is None else None
