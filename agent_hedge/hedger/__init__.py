"""The hedger: composition root and public face. The only place that knows adapters, stores and defaults.

`face.Hedger` is made of one part a file: `functions`, `models`, `graphs`, `tools`, `runs`, all on `base`; `settings`
holds the checks.
"""

from __future__ import annotations

from agent_hedge.hedger.face import Hedger
from agent_hedge.hedger.runs import TYPICAL_STEPS
from agent_hedge.hedger.settings import STORE_SCHEMES, ModelSettings, NodeSettings, WrapSettings

__all__ = ["STORE_SCHEMES", "TYPICAL_STEPS", "Hedger", "ModelSettings", "NodeSettings", "WrapSettings"]
