"""Draws an explained graph as a Mermaid flowchart: green may be duplicated, red may not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_hedge.adapters.langgraph.report import NodeReport

CLASSES = {
    "hedgeable": "fill:#d7f5dd,stroke:#1a7f37,color:#0b3d1a",
    "model": "fill:#fff3c4,stroke:#b08800,color:#4d3800",
    "barred": "fill:#ffdcd7,stroke:#cf222e,color:#660b13",
    "terminal": "fill:#eaeef2,stroke:#57606a,color:#24292f",
}
"""`hedgeable`: model calls and the whole node; `model`: only its model calls; `barred`: nothing in it."""


def draw(name: str, entry: Sequence[str], nodes: Sequence[NodeReport]) -> str:
    """Return the text of the diagram. Nested nodes stand in the box of the node that runs them."""
    drawn = {node.name: node for node in sorted(nodes, key=lambda node: not node.verdicts["node"].hedgeable)}
    nodes = [node for node in nodes if drawn[node.name] is node]  # of two with one name, the barred one
    ids = {node.name: f"n{index}" for index, node in enumerate(nodes)}
    lines = ["---", f"title: {_quoted(name)}", "---", "flowchart TD", '    start(["start"])', '    finish(["end"])']
    if any(node.exits.anywhere for node in nodes):
        lines.append('    anywhere{{"any node"}}')
    lines += _boxes("", nodes, ids, "    ")
    lines += [f"    start --> {ids[each]}" for each in entry if each in ids]
    for node in nodes:
        lines += _arrows(node, ids)
    lines += [f"    classDef {kind} {style}" for kind, style in CLASSES.items()]
    lines.append("    class start,finish terminal")
    for kind in ("hedgeable", "model", "barred"):
        members = [ids[node.name] for node in nodes if _kind(node) == kind]
        if members:
            lines.append(f"    class {','.join(members)} {kind}")
    return "\n".join(lines) + "\n"


def _boxes(parent: str, nodes: Sequence[NodeReport], ids: dict[str, str], indent: str) -> Iterator[str]:
    for node in nodes:
        above, _, label = node.name.rpartition("|")
        if above != parent:
            continue
        text = _quoted("<br/>".join([_escaped(label), *(_escaped(str(tool)) for tool in node.tools)]))
        if any(other.name.startswith(f"{node.name}|") for other in nodes):
            yield f"{indent}subgraph {ids[node.name]}[{text}]"
            yield from _boxes(node.name, nodes, ids, indent + "    ")
            yield f"{indent}end"
        else:
            yield f"{indent}{ids[node.name]}[{text}]"


def _arrows(node: NodeReport, ids: dict[str, str]) -> Iterator[str]:
    above, separator, _ = node.name.rpartition("|")
    here = ids[node.name]
    if node.exits.anywhere:
        yield f"    {here} -.-> anywhere"
        return
    for name in node.exits.nodes:
        yield f"    {here} --> {ids[above + separator + name]}"
    if node.exits.ends and not above:
        yield f"    {here} --> finish"


def _kind(node: NodeReport) -> str:
    if node.verdicts["node"].hedgeable and node.verdicts["model"].hedgeable:
        return "hedgeable"
    return "model" if node.models and node.verdicts["model"].hedgeable else "barred"


def _escaped(text: str) -> str:
    """Write what Mermaid would read as markup in its own entity codes."""
    return text.replace("#", "#35;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")


def _quoted(text: str) -> str:
    return '"' + text.replace('"', "'").replace("\n", " ") + '"'
