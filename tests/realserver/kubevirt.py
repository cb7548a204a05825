"""KubeVirt on a real API server: virt-api's mutator over TLS, virt-controller for VirtualMachines and VMIs.

Owns HTTP and the retries; what a launcher is and how a VMI's status follows it belongs to
`reconciler.cluster.memory.kubevirt`.
"""

from __future__ import annotations

import base64
import copy
import ssl
import time
from typing import Any

import msgspec
from aiohttp import web
from trustme import CA

from reconciler.cluster.memory import virt_api
from reconciler.cluster.memory.json_objects import Document, merge_patch
from reconciler.cluster.memory.kubevirt import VirtController, launcher, refused
from reconciler.cluster.memory.pods import FINISHED, deleting, phase_of
from reconciler.cluster.port import ClusterError, NotFound, Preconditions, Rejected
from reconciler.core.model.objects import POD, VMI, Kind, Object
from reconciler.core.model.vocabulary import CREATED_BY_LABEL, MIGRATION_LABEL
from tests.realserver.caches import ActorPort, Mirrors
from tests.realserver.registration import MUTATING, VALIDATING

VM = Kind("VirtualMachine", "kubevirt.io", "v1", "virtualmachines", True, Object, foreign=True)
LAUNCHER_IMAGE = "registry.k8s.io/pause:3.10"
LAUNCHER_GRACE_SECONDS = 2
"""A namespace that is deleted waits for half of what its pods ask."""
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 0.005, 1000.0
"""Of a failed sync, as client-go's rate limiter of items has them."""
FIRST_RESTART_SECONDS, LAST_RESTART_SECONDS = 10.0, 300.0
"""Of a VirtualMachine whose VMI failed before it ran: the first times the square of the failures in a row."""
MAX_REVIEW_BYTES = 16 << 20


class WebhookServer:
    """An admission webhook on a free loopback port. `base_url` and `ca_pem` are what a registration needs."""

    def __init__(self, authority: CA, routes: dict[str, Any]) -> None:
        """`routes`: path to a coroutine function from AdmissionReview to AdmissionReview, both JSON values."""
        self._authority = authority
        self._routes = routes
        self._runner: web.AppRunner | None = None
        self.base_url = ""
        self.ca_pem = authority.cert_pem.bytes().decode()

    async def start(self) -> None:
        app = web.Application(client_max_size=MAX_REVIEW_BYTES)
        for path, call in self._routes.items():
            app.router.add_post(path, _handler(call))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._authority.issue_cert("127.0.0.1").configure_cert(context)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        port = self._runner.addresses[0][1]
        self.base_url = f"https://127.0.0.1:{port}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()


def _handler(call: Any) -> Any:
    async def handle(request: web.Request) -> web.Response:
        answer = await call(msgspec.json.decode(await request.read()))
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

    return handle


MUTATE_PATH, VALIDATE_PATH = "/virtualmachineinstances-mutate", "/virtualmachineinstances-validate"


def virt_api_server(authority: CA) -> WebhookServer:
    """virt-api's mutator and validator of VMIs."""
    return WebhookServer(authority, {MUTATE_PATH: virt_api.mutate, VALIDATE_PATH: virt_api.validate})


def virt_api_configurations(server: WebhookServer) -> list[tuple[Kind, Document]]:
    """Their registrations: kind and body."""
    rule = {
        "apiGroups": [VMI.group],
        "apiVersions": [VMI.version],
        "resources": [VMI.plural],
        "operations": list(virt_api.OPERATIONS),
        "scope": "Namespaced",
    }
    return [
        (kind, webhook_configuration(name, f"{webhook}.kubevirt.io", server.base_url + path, server.ca_pem, rule))
        for kind, name, webhook, path in (
            (MUTATING, virt_api.MUTATOR, "virtualmachineinstances-mutator", MUTATE_PATH),
            (VALIDATING, virt_api.VALIDATOR, "virtualmachineinstances-validator", VALIDATE_PATH),
        )
    ]


def webhook_configuration(
    name: str, webhook: str, url: str, ca_pem: str, rule: dict[str, Any], **fields: Any
) -> Document:
    """A webhook configuration of one webhook by URL; `fields` beside or instead of the usual ones."""
    bundle = base64.b64encode(ca_pem.encode()).decode()
    entry = {
        "name": webhook,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "timeoutSeconds": 10,
        "clientConfig": {"url": url, "caBundle": bundle},
        "rules": [rule],
        **fields,
    }
    return {"metadata": {"name": name}, "webhooks": [entry]}


class Backoff:
    """Which objects have to wait before the next attempt: the pause doubles with every failure in a row, and any
    change of the object ends it, as an event puts its key into the work queue at once."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[float, float, str]] = {}

    def waits(self, metadata: Document) -> bool:
        until, _, version = self._failures.get(metadata["uid"], (0.0, 0.0, ""))
        return version == metadata["resourceVersion"] and time.monotonic() < until

    def failed(self, metadata: Document) -> None:
        _, last, _ = self._failures.get(metadata["uid"], (0.0, FIRST_RETRY_SECONDS / 2, ""))
        pause = min(2 * last, LAST_RETRY_SECONDS)
        self._failures[metadata["uid"]] = (time.monotonic() + pause, pause, metadata["resourceVersion"])

    def worked(self, metadata: Document) -> None:
        self._failures.pop(metadata["uid"], None)


class LauncherController(VirtController):
    """virt-controller's part for VMIs: launchers that an API server takes, refusals retried with backoff."""

    def __init__(self, mirrors: Mirrors, port: ActorPort) -> None:
        super().__init__(mirrors.documents, port)
        self._real_port = port
        self._backoff = Backoff()

    async def launch(self, vmi: Document) -> bool:
        metadata = vmi["metadata"]
        if self._backoff.waits(metadata):
            return False
        try:
            await self._real_port.create(POD, metadata["namespace"], launcher_pod(vmi))
        except Rejected as error:
            self._backoff.failed(metadata)
            return await self.set_status(vmi, refused(error.message))
        except ClusterError:
            self._backoff.failed(metadata)
            raise
        self._backoff.worked(metadata)
        return True


def launcher_pod(vmi: Document, migration_uid: str = "") -> Document:
    """The launcher with what an API server insists on; `migration_uid`: a live-migration target, kept
    off the node of its source."""
    pod = launcher(vmi)
    pod["spec"]["containers"][0]["image"] = LAUNCHER_IMAGE
    pod["spec"]["automountServiceAccountToken"] = False
    asked = (vmi.get("spec") or {}).get("terminationGracePeriodSeconds")
    pod["spec"]["terminationGracePeriodSeconds"] = LAUNCHER_GRACE_SECONDS if asked is None else asked
    if migration_uid:
        pod["metadata"]["labels"][MIGRATION_LABEL] = migration_uid
        source = {CREATED_BY_LABEL: vmi["metadata"]["uid"]}
        elsewhere = {"labelSelector": {"matchLabels": source}, "topologyKey": "kubernetes.io/hostname"}
        affinity = copy.deepcopy(pod["spec"].get("affinity") or {})
        terms = affinity.setdefault("podAntiAffinity", {})
        terms.setdefault("requiredDuringSchedulingIgnoredDuringExecution", []).append(elsewhere)
        pod["spec"]["affinity"] = affinity
    return pod


class MachineController:
    """virt-controller's part for VirtualMachines: a VMI from the template while the machine is to run."""

    def __init__(self, mirrors: Mirrors, port: ActorPort) -> None:
        self._mirrors = mirrors
        self._port = port
        self._backoff = Backoff()
        self._ran: set[str] = set()
        self._restart_at: dict[str, float] = {}

    async def step(self) -> bool:
        """Look at every VirtualMachine once; says whether anything changed or has to be tried again."""
        changed = [await self._look_at(machine) for machine in self._mirrors.documents(VM)]
        return any(changed)

    async def _look_at(self, machine: Document) -> bool:
        metadata = machine["metadata"]
        if deleting(machine):
            return False
        vmi = self._mirrors.get(VMI, metadata["namespace"], metadata["name"])
        try:
            if vmi is None and _to_run(machine):
                return await self._start(machine)
            ended = vmi is not None and (not _to_run(machine) or phase_of(vmi) in FINISHED)
            if vmi is not None and ended and not deleting(vmi) and _owns(machine, vmi):
                return await self._end(machine, vmi)
            if vmi is not None and phase_of(vmi) == "Running":
                self._ran.add(vmi["metadata"]["uid"])
            return await self._set_status(machine, _machine_status(machine, vmi))
        except NotFound:
            return False
        except ClusterError:
            return True

    async def _start(self, machine: Document) -> bool:
        metadata = machine["metadata"]
        if self._backoff.waits(metadata) or time.monotonic() < self._restart_at.get(metadata["uid"], 0.0):
            return False
        try:
            await self._port.create(VMI, metadata["namespace"], vmi_of(machine))
        except Rejected as error:
            self._backoff.failed(metadata)
            return await self._set_status(machine, _failed_start(machine, error.message))
        except ClusterError:
            self._backoff.failed(metadata)
            raise
        self._backoff.worked(metadata)
        return True

    async def _end(self, machine: Document, vmi: Document) -> bool:
        """Delete a VMI that has ended or is to stop. One that failed before it ran delays the next start."""
        metadata, uid = machine["metadata"], vmi["metadata"]["uid"]
        if phase_of(vmi) == "Failed" and uid not in self._ran:
            failure = (machine.get("status") or {}).get("startFailure") or {}
            failures = failure.get("consecutiveFailCount", 0) + (failure.get("lastFailedVMIUID") != uid)
            pause = min(FIRST_RESTART_SECONDS * failures**2, LAST_RESTART_SECONDS)
            self._restart_at[metadata["uid"]] = time.monotonic() + pause
            told = {"consecutiveFailCount": failures, "lastFailedVMIUID": uid}
            await self._set_status(machine, {"startFailure": told, "printableStatus": "CrashLoopBackOff"})
        await self._port.delete(VMI, metadata["namespace"], metadata["name"], preconditions=Preconditions(uid=uid))
        return True

    async def _set_status(self, machine: Document, status: Document) -> bool:
        metadata, present = machine["metadata"], machine.get("status") or {}
        if merge_patch(present, status) == present:
            return False
        await self._port.patch(VM, metadata["namespace"], metadata["name"], {"status": status}, subresource="status")
        return True


def _to_run(machine: Document) -> bool:
    spec = machine.get("spec") or {}
    return spec.get("running") is True or spec.get("runStrategy") in ("Always", "RerunOnFailure")


def _owns(machine: Document, vmi: Document) -> bool:
    owners = vmi["metadata"].get("ownerReferences") or []
    return any(owner["uid"] == machine["metadata"]["uid"] for owner in owners)


def _machine_status(machine: Document, vmi: Document | None) -> Document:
    if vmi is None:
        return {"created": False, "ready": False, "printableStatus": "Stopped", "startFailure": None}
    if phase_of(vmi) == "Running":
        shown = {"ready": True, "printableStatus": "Running", "startFailure": None}
        return {"created": True, "conditions": None, **shown}
    crashed = phase_of(vmi) in FINISHED and (machine.get("status") or {}).get("startFailure")
    shown = {"ready": False, "printableStatus": "CrashLoopBackOff" if crashed else "Starting"}
    return {"created": True, "conditions": None, **shown}


def _failed_start(machine: Document, message: str) -> Document:
    """The condition Failure keeps the message it was set with until a start succeeds."""
    present = (machine.get("status") or {}).get("conditions") or []
    kept = [condition for condition in present if condition.get("type") == "Failure"]
    told = f"Failure while starting VMI: {message}"
    failure = {"type": "Failure", "status": "True", "reason": "FailedCreate", "message": told}
    return {"created": False, "ready": False, "printableStatus": "Stopped", "conditions": kept or [failure]}


def vmi_of(machine: Document) -> Document:
    """The VMI of a machine: its template's labels, annotations and spec, under the machine's name."""
    template = (machine.get("spec") or {}).get("template") or {}
    given = template.get("metadata") or {}
    owner = {
        "apiVersion": VM.api_version,
        "kind": VM.name,
        "name": machine["metadata"]["name"],
        "uid": machine["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata = {"name": machine["metadata"]["name"], "ownerReferences": [owner]}
    metadata |= {field: given[field] for field in ("labels", "annotations") if given.get(field)}
    return {"apiVersion": VMI.api_version, "kind": VMI.name, "metadata": metadata, "spec": template.get("spec") or {}}
