"""What rendered roles grant, as a set that can be compared with what code calls.

A grant is (account, group, resource, verb, object name or ""). `granted` reads manifests; `missing` and `spare`
compare with calls seen elsewhere, for example in an API server's audit log.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple


class Grant(NamedTuple):
    """`namespace` "" is cluster-wide; `name` "" is every name; `resource` includes the subresource."""

    account: str
    namespace: str
    group: str
    resource: str
    verb: str
    name: str = ""


def granted(manifests: Iterable[dict[str, Any]]) -> frozenset[Grant]:
    """Every right that bindings in `manifests` give to service accounts."""
    manifests = list(manifests)
    roles = {
        (m["kind"], m["metadata"]["name"]): m.get("rules", [])
        for m in manifests
        if m["kind"] in ("Role", "ClusterRole")
    }
    found: set[Grant] = set()
    for binding in manifests:
        if binding["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        namespace = binding["metadata"].get("namespace", "")
        rules = roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]]
        for subject in binding["subjects"]:
            if subject["kind"] == "ServiceAccount":
                found.update(_grants(subject["name"], namespace, rules))
    return frozenset(found)


def _grants(account: str, namespace: str, rules: list[dict[str, Any]]) -> Iterable[Grant]:
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    for name in rule.get("resourceNames", [""]):
                        yield Grant(account, namespace, group, resource, verb, name)


def covers(grant: Grant, call: Grant) -> bool:
    """Does the grant allow the call? A grant without namespace or name allows any."""
    return (
        grant[0] == call[0]
        and grant[2:5] == call[2:5]
        and grant.namespace in ("", call.namespace)
        and grant.name in ("", call.name)
    )


def missing(grants: Iterable[Grant], calls: Iterable[Grant]) -> list[Grant]:
    """Calls that nothing allows."""
    grants = list(grants)
    return sorted(call for call in calls if not any(covers(grant, call) for grant in grants))


def spare(grants: Iterable[Grant], calls: Iterable[Grant]) -> list[Grant]:
    """Grants that no call needs."""
    calls = list(calls)
    return sorted(grant for grant in grants if not any(covers(grant, call) for call in calls))
