"""Results of budget checks: refusals, headroom, and the chain of tenants that explains both (R4, J7).

Owns the result types and their messages. `charges` computes them.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from reconciler.core.tenancy.tenants import BudgetKey


class BudgetRefusal(msgspec.Struct, frozen=True):
    """A budget that a request would exceed. `charge`: before the request; `request` and `missing`: units.

    `child`: for a change of a sub-tenant's budget, that sub-tenant; `child_budget`: the budget asked for.
    """

    tenant: str
    key: BudgetKey
    budget: int
    charge: int
    request: int
    missing: int
    child: str = ""
    child_budget: int = 0

    @property
    def message(self) -> str:
        """One actionable sentence for the tenant."""
        stand = (
            f"tenant {self.tenant} has a budget of {self.budget} for {self.key}, {self.charge} of it used "
            "or set aside for sub-tenants"
        )
        if self.child:
            return (
                f"{stand}; a budget of {self.child_budget} for {self.child} takes {self.request} more, "
                f"{self.missing} too many: give {self.child} less, or raise the budget of {self.tenant}"
            )
        return (
            f"{stand}; {self.request} more asked for, {self.missing} too many: ask for less, delete orders "
            f"that are not needed, or have the budget of {self.tenant} raised"
        )

    def public(self, own: str) -> str:
        """The message for the tenant `own` where the budget is of a tenant above it (N9)."""
        if self.child:
            return (
                f"a tenant above {own} has a budget for {self.key} that a budget of {self.child_budget} for "
                f"{self.child} exceeds by {self.missing}: give {self.child} less, or ask the hoster for more"
            )
        return (
            f"a tenant above {own} has a budget for {self.key}; {self.request} more asked for, {self.missing} too "
            "many: ask for less, delete orders that are not needed, or ask the hoster for more"
        )


class BudgetUnreadable(msgspec.Struct, frozen=True):
    """A budget of the tenant or one above it that cannot be read; requests it would limit are refused (R3).
    `release`: NAMESPACE/NAME of the tenant's release where that is missing (R4)."""

    tenant: str
    key: BudgetKey
    error: str
    release: str = ""

    @property
    def message(self) -> str:
        if self.release:
            return (
                f"the budget of tenant {self.tenant} for {self.key} is not known: {self.error}; "
                "restore that HelmRelease, or correct it"
            )
        return (
            f"the budget of tenant {self.tenant} for {self.key} cannot be read: {self.error}; correct the "
            "resourceQuotas of that tenant"
        )

    def public(self, own: str) -> str:
        """The message for the tenant `own` where the budget is of a tenant above it (N9). The missing release of one
        whose name begins its own namespace's tells it nothing new."""
        if self.release and own.startswith(f"{self.tenant}-"):
            return self.message
        return f"a budget for {self.key} of a tenant above {own} cannot be read; ask the hoster to correct it"


class Headroom(NamedTuple):
    """The largest request that would pass. `units` None: no budget limits it. `tenant`: whose budget limits it."""

    units: int | None
    tenant: str = ""


class Level(msgspec.Struct, frozen=True):
    """One tenant in the chain up to the root. `budget` and `left` None: it has no budget for the key; `error`: its
    budget cannot be read."""

    tenant: str
    budget: int | None
    charge: int
    left: int | None
    error: str = ""
