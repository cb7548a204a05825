"""The refused request as recorded in the journal, so that the refusal can be explained later (J7)."""

from __future__ import annotations

from reconciler.core.model.objects import Constraints, Model, Owner


class StartRequest(Model, frozen=True, kw_only=True):
    """Names of held devices, (class, count) templates, and what the VMI requires of its node. An order is one
    template. `owner`: the VirtualMachine of the VMI, which is told of the refusal; None if there is none."""

    devices: tuple[str, ...] = ()
    templates: tuple[tuple[str, int], ...] = ()
    constraints: Constraints = Constraints()
    owner: Owner | None = None
