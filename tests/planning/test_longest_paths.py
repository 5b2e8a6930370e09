"""How many LLM steps a graph still has before it, from its edges alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent_hedge.planning.steps import longest_paths

Edges = dict[str, tuple[str, ...]]


@st.composite
def graphs(draw: st.DrawFn, *, loops: bool = False) -> tuple[dict[str, int | None], Edges]:
    """Draw up to eight nodes with their steps, and edges; without `loops` they lead from a node to later ones only."""
    names = [str(number) for number in range(draw(st.integers(1, 8)))]
    own = st.integers(0, 3) if not loops else st.none() | st.integers(0, 3)
    edges = {
        name: tuple(each for each in (names if loops else names[place + 1 :]) if draw(st.booleans()))
        for place, name in enumerate(names)
    }
    shuffled = draw(st.permutations(names))  # the order in which nodes were added means nothing
    return {name: draw(own) for name in shuffled}, edges


def every_path(start: str, edges: Edges) -> list[tuple[str, ...]]:
    return [(start, *rest) for name in edges[start] for rest in every_path(name, edges)] or [(start,)]


@given(graphs())
def test_the_longest_of_all_paths(drawn: tuple[dict[str, int], Edges]) -> None:
    steps, edges = drawn
    expected = {name: max(sum(steps[each] for each in path) for path in every_path(name, edges)) for name in steps}
    assert longest_paths(steps, edges) == expected


def reached(start: str, edges: Edges) -> set[str]:
    """Return what can come after `start`; `start` itself only where there is a loop."""
    found: set[str] = set()
    waiting = list(edges[start])
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            waiting += edges[name]
    return found


@given(graphs(loops=True))
def test_nothing_is_known_where_a_loop_or_an_unknown_node_can_be_reached(
    drawn: tuple[dict[str, int | None], Edges],
) -> None:
    steps, edges = drawn
    loops = {name for name in steps if name in reached(name, edges)}
    unknown = loops | {name for name, own in steps.items() if own is None}
    found = longest_paths(steps, edges)
    assert {name for name, longest in found.items() if longest is None} == {
        name for name in steps if unknown & {name, *reached(name, edges)}
    }


def test_a_long_graph_is_no_deep_recursion() -> None:
    edges = {str(number): (str(number + 1),) for number in range(5_000)} | {"5000": ()}
    assert longest_paths(dict.fromkeys(edges, 1), edges)["0"] == 5_001
