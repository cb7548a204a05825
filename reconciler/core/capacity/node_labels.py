"""Index of nodes by requested labels, so that a start which selects a zone scans only that zone (P2).

Returns a superset: no node outside it matches; nodes inside it are still filtered (`node_filter`). A label key is
indexed on first use; the index never changes a decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet

from reconciler.core.capacity.node_filter import NAME_FIELD
from reconciler.core.model.objects import Constraints, Node, Requirement, Term

MAX_KEYS = 32
"""Label keys indexed at once; a tenant may select by any key, and each costs a pass over the nodes and memory."""

Nodes = Callable[[], Iterable[Node]]
"""Returns all nodes; called only when a label key is first requested."""


class NodeLabels:
    """Node names by label key and value."""

    def __init__(self) -> None:
        self._by_key: dict[str, dict[str, set[str]]] = {}

    def update(self, old: Node | None, new: Node | None) -> None:
        """Update one changed node; None: the node does not exist."""
        for key, values in self._by_key.items():
            if old is not None and key in old.labels:
                values[old.labels[key]].discard(old.name)
            if new is not None and key in new.labels:
                values.setdefault(new.labels[key], set()).add(new.name)

    def bound(self, constraints: Constraints, nodes: Nodes) -> AbstractSet[str] | None:
        """Names that include every matching node; None: the constraints do not narrow the nodes."""
        bounds = [self._having(key, (value,), nodes) for key, value in constraints.node_selector.items()]
        terms = [self._term(term, nodes) for term in constraints.terms or ()]
        known = [names for names in terms if names is not None]
        if constraints.terms is not None and len(known) == len(terms):
            bounds.append(known[0] if len(known) == 1 else frozenset().union(*known))
        return min(bounds, key=len) if bounds else None

    def _term(self, term: Term, nodes: Nodes) -> AbstractSet[str] | None:
        """Requirements are ANDed, so the narrowest one bounds the term. Only `In` narrows the nodes."""
        bounds = [self._having(one.key, one.values, nodes) for one in term.match_expressions if one.operator == "In"]
        bounds += [frozenset(one.values) for one in term.match_fields if _names_nodes(one)]
        return min(bounds, key=len) if bounds else None

    def _having(self, key: str, values: tuple[str, ...], nodes: Nodes) -> AbstractSet[str]:
        found = self._by_key.get(key)
        if found is None:
            if len(self._by_key) == MAX_KEYS:
                del self._by_key[next(iter(self._by_key))]
            found = self._by_key[key] = {}
            for node in nodes():
                if key in node.labels:
                    found.setdefault(node.labels[key], set()).add(node.name)
        if len(values) == 1:
            return found.get(values[0], frozenset())
        return frozenset().union(*(found.get(value, ()) for value in values))


def _names_nodes(one: Requirement) -> bool:
    return one.key == NAME_FIELD and one.operator == "In"
