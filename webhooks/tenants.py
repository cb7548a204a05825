"""W4: validating webhook for tenants' GPU budgets.

Owns when a HelmRelease's budgets are checked: only for a tenant's release whose GPU budget changes, so that no other
tenant operation depends on this controller (N3). The parent's headroom comes from `charges`.
"""

from __future__ import annotations

import msgspec

from reconciler.core.admission import checks
from reconciler.core.model.decode_platform import read_quotas
from reconciler.core.model.vocabulary import TENANT_KIND, TENANT_KIND_LABEL, Reason
from reconciler.core.tenancy import tenants
from reconciler.core.tenancy.tenants import NO_BUDGETS, Budgets
from webhooks.review import ALLOWED, Answer, Denied, Request, read_object
from webhooks.view import View


class _Metadata(msgspec.Struct, frozen=True):
    name: str = ""
    labels: dict[str, str] | None = None


class _Spec(msgspec.Struct, frozen=True):
    values: msgspec.Raw = msgspec.Raw(b"null")


class _Release(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()

    @property
    def tenant(self) -> bool:
        return (self.metadata.labels or {}).get(TENANT_KIND_LABEL) == TENANT_KIND


class TenantWebhook:
    """Validates CREATE and UPDATE of tenants' HelmReleases (W4). Raises `Denied`."""

    def __init__(self, view: View) -> None:
        self._view = view

    async def __call__(self, request: Request, seconds: float) -> Answer:
        if request.operation not in ("CREATE", "UPDATE"):
            return ALLOWED
        release = read_object(request.object, _Release)
        name = release.metadata.name or request.name
        owned = tenants.owned_namespace(request.namespace, name)
        if not release.tenant or owned is None:
            return ALLOWED
        before = NO_BUDGETS
        if request.operation == "UPDATE":
            old = read_object(request.old_object, _Release, "oldObject")
            before = self._budgets(old) if old.tenant else NO_BUDGETS
        after = self._budgets(release)
        if after == before:
            return ALLOWED
        _refuse_unreadable(owned, after)
        self._refuse_above_parent(tenants.parent_of(request.namespace, name), owned, before, after)
        return Answer(
            warnings=tuple(
                f"resourceQuotas[{key!r}] looks like a GPU budget and matches no GPU class and no GPU name; it "
                "limits nothing"
                for key in after.unmatched
            )
        )

    def _budgets(self, release: _Release) -> Budgets:
        """The GPU budgets of a release; an unreadable map is reported as the budgets' own error (R3)."""
        try:
            quotas, error = read_quotas(release.spec.values)
        except (ValueError, RecursionError) as broken:
            quotas, error = {}, f"spec.values cannot be read: {broken}"
        return tenants.parse_budgets(
            quotas,
            class_names=self._view.class_resources,
            effective_names=self._view.effective_names,
            error=error,
        )

    def _refuse_above_parent(self, parent: str | None, owned: str, before: Budgets, after: Budgets) -> None:
        if parent is None:
            return
        for key in sorted({*before.limits, *after.limits}):
            if before.limits.get(key) == after.limits.get(key):
                continue
            refusal = self._view.charges.check_child_budget(parent, owned, key, after.limits.get(key))
            if refusal is not None:
                raise Denied.because(checks.budget_refusal(refusal, parent), self._view.settings)


def _refuse_unreadable(owned: str, budgets: Budgets) -> None:
    errors = [budgets.error] if budgets.error else [budgets.unreadable[key] for key in sorted(budgets.unreadable)]
    if errors:
        raise Denied(
            Reason.BUDGET_UNREADABLE,
            f"the GPU budgets of tenant {owned} cannot be read: {'; '.join(errors[:5])}; write whole units, 0 "
            "to allow nothing, or leave the key out",
        )
