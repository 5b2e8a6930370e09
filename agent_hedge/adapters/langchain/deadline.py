"""A call's time-outs at its SDK: the model's own, but none longer than what is left to the deadline (R12).

Our own timer ends an attempt at the deadline anyway. The SDK's time-outs end what that cannot reach: a thread, a
connection that is still being set up, an SDK that swallows a cancel.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx


def limited(model: Any, given: Any, left: float) -> httpx.Timeout | None:
    """Return the time-outs of one call, in seconds; None where there is no deadline, or the model says none of its own.

    `model` is the private copy that the call is made on, `given` what the caller asks for this call (None: nothing).
    """
    if left == math.inf:
        return None
    client: Any = getattr(model, "root_async_client", None) or getattr(model, "_async_client", None)
    if given is None and client is None:
        return None
    import httpx  # the SDK of the model has brought it

    own = httpx.Timeout(client.timeout if given is None else given)
    return httpx.Timeout(**{phase: left if most is None else min(most, left) for phase, most in own.as_dict().items()})
