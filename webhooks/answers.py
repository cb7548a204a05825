"""Waits for the binder's answer to a bind request (B3, B4).

Owns polling (cache first, then GET) and the rules for which answers count. Writes nothing. Neighbour: `binding`.
"""

from __future__ import annotations

from reconciler.cluster.port import Unavailable
from reconciler.core.capacity import node_filter
from reconciler.core.model.objects import BindAnswer, Device
from reconciler.core.model.vocabulary import Outcome, Phase, Reason
from webhooks.clock import Clock
from webhooks.reader import DeviceReader
from webhooks.review import Denied
from webhooks.sets import DeviceSet, belongs, held_by_earlier
from webhooks.view import View

POLL_SECONDS = 0.025
"""Interval between cache lookups."""
READ_SECONDS = 0.25
"""Interval between GETs of devices that have no answer in the cache."""
_POLLS_PER_READ = round(READ_SECONDS / POLL_SECONDS)


class Answers:
    """Reads answers for the bind clients of one replica."""

    def __init__(self, reader: DeviceReader, view: View, clock: Clock) -> None:
        self._reader = reader
        self._view = view
        self._clock = clock

    async def follow(self, wanted: DeviceSet, request_id: str, until: float, dry_run: bool) -> bool:
        """Adopt the answer to an earlier request of the same VMI, without taking over its undo (B4, C17, C21). False if
        that request is gone."""
        unanswered = Denied(
            Reason.BIND_TIMEOUT,
            f"an earlier start of {wanted.vmi} has not been answered yet; try again in a moment",
        )
        while True:
            devices = await self._reader.read_all(wanted.namespace, wanted.names)
            ours = [name for name in wanted.names if belongs(wanted, devices[name], request_id)]
            if not ours:
                return False
            present = [device for device in devices.values() if device is not None]
            if len(ours) == wanted.size:
                answers = [_answer(device, request_id) for device in present]
                node = _verdict([answer for answer in answers if answer is not None], wanted.size)
                if node:
                    self._check_recent(wanted, present, node)
                    return True
            if dry_run:
                return True
            await pause(self._clock, until, unanswered, READ_SECONDS)

    def _check_recent(self, wanted: DeviceSet, devices: list[Device], node_name: str) -> None:
        """Accept an earlier answer only while it is fresh and its node still fits the VMI (B4). Age is measured by this
        replica's clock, not the leader's."""
        for device in devices:
            request, since = self._view.attached_since.get(device.uid, ("", 0))
            asked = device.bind_request is not None and device.bind_request.id == request
            age = self._view.now - since if asked else 0
            if age > self._view.settings.attach_grace or device.phase != Phase.BOUND or device.deleting is not None:
                raise held_by_earlier(wanted, device.name)
        node = self._view.node(node_name)
        if node is not None and node_filter.why_not(node, wanted.constraints, wanted.constraints.memory) is not None:
            raise held_by_earlier(wanted, devices[0].name)

    async def wait(self, wanted: DeviceSet, request_id: str, until: float) -> str:
        """Return the node once every device carries a Bound answer to this request (B3). Raises `Denied` on refusal,
        timeout, or a deleted device."""
        answers: dict[str, BindAnswer] = {}
        polls = 0
        while True:
            for name in wanted.names:
                cached = self._reader.cached(wanted.namespace, name)
                if cached is not None and (found := _answer(cached, request_id)) is not None:
                    answers[name] = found
            missing = [name for name in wanted.names if name not in answers]
            if missing and polls % _POLLS_PER_READ == _POLLS_PER_READ - 1:
                for name, device in (await self._read_if_possible(wanted.namespace, missing)).items():
                    _still_ours(wanted, name, device, request_id)
                    if device is not None and (found := _answer(device, request_id)) is not None:
                        answers[name] = found
            node = _verdict(list(answers.values()), wanted.size)
            if node:
                return node
            if len(answers) == wanted.size:
                answers.clear()  # the set is being re-decided and the answers name different nodes: keep waiting
            polls += 1
            await pause(self._clock, until, late(wanted), POLL_SECONDS)

    async def _read_if_possible(self, namespace: str, names: list[str]) -> dict[str, Device | None]:
        try:
            return await self._reader.read_all(namespace, names)
        except Unavailable:
            return {}


def _still_ours(wanted: DeviceSet, name: str, device: Device | None, request_id: str) -> None:
    if device is None or device.deleting is not None:
        raise Denied(
            Reason.DEVICE_DELETED,
            f"GPUDevice {wanted.namespace}/{name} was deleted while {wanted.vmi} started; refer to another",
        )
    if not carries(device, request_id):
        raise Denied(
            Reason.DEVICE_ATTACHED,
            f"GPUDevice {wanted.namespace}/{name} was released while {wanted.vmi} started; try again",
        )


def _verdict(answers: list[BindAnswer], size: int) -> str:
    """The node named by all answers, "" while incomplete. Raises `Denied` on a refusal."""
    for answer in answers:
        if answer.outcome != Outcome.BOUND:
            raise Denied(answer.reason or Reason.NO_NODE_FITS, answer.message)
    nodes = {answer.node for answer in answers}
    return answers[0].node if len(answers) == size and len(nodes) == 1 else ""


def carries(device: Device, request_id: str) -> bool:
    """Whether the device is attached under this request."""
    return device.attachment is not None and device.attachment.request_id == request_id


def _answer(device: Device, request_id: str) -> BindAnswer | None:
    """The device's answer to this request, None if there is none or the device no longer carries the request."""
    answer = device.bind_answer if carries(device, request_id) else None
    return answer if answer is not None and answer.request_id == request_id else None


def late(wanted: DeviceSet) -> Denied:
    """Denial when the bind deadline is exceeded (B3)."""
    return Denied(
        Reason.BIND_TIMEOUT,
        f"the GPUs of {wanted.vmi} were not placed in time; nothing is kept, try again in a moment",
    )


async def pause(clock: Clock, until: float, too_late: Denied, seconds: float) -> None:
    """Sleep; raises `too_late` if the sleep would end at or after `until` (monotonic seconds)."""
    if clock.monotonic() + seconds >= until:
        raise too_late
    await clock.sleep(seconds)
