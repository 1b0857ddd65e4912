"""``noetl-celery plan``: what a playbook will do, before it does: steps, arcs, loops, what it needs from outside."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from noetl_celery.cli.console import out, out_json


class Format(Enum):
    """What ``--format`` may be."""

    tree = "tree"
    mermaid = "mermaid"
    dot = "dot"
    json = "json"


def plan(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A playbook (YAML).", show_default=False)],
    format_: Annotated[
        Format, typer.Option("--format", help="A tree for people, a graph for Mermaid or Graphviz, or JSON.")
    ] = Format.tree,
) -> None:
    """Shows what a playbook will do; needs no service.

    Steps in the order in which they are reached, with their arcs and conditions, loops, tools, and what the playbook
    needs: workload, credentials, other playbooks. Exit code 2 if it would be refused.
    """
    from noetl_celery.cli.plan_graph import dot, mermaid
    from noetl_celery.cli.plan_tree import show
    from noetl_celery.playbook.outline import described
    from noetl_celery.submission import read_playbook

    data = described(read_playbook(file).compiled.plan)
    if format_ is Format.json:
        out_json(data)
    elif format_ is Format.mermaid:
        out(mermaid(data))
    elif format_ is Format.dot:
        out(dot(data))
    else:
        show(data)
