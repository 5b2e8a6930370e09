"""What is known of latencies: censored quantiles over sliding windows, one book per process.

From the inside out: `bins` is the grid, `sketch` counts on it and estimates (Kaplan-Meier), `window` forgets,
`history` holds all windows of one key, `book` knows keys and their fallback, `first_calls` keeps cold calls apart,
`persist` and `prime` fill a book.
No clocks and no tasks: every method takes `now` in seconds, and rotation happens when somebody asks.
"""

from agent_hedge.latency.book import LatencyBook, Threshold, size_bucket
from agent_hedge.latency.first_calls import FirstCalls
from agent_hedge.latency.sketch import Curve, Estimate, Sketch

__all__ = ["Curve", "Estimate", "FirstCalls", "LatencyBook", "Sketch", "Threshold", "size_bucket"]
