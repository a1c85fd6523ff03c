"""Warm pods, which wait for one run each, and the removal of dead bridges' pods.

Each bridge renews a lease. Bridges of one service share their warm pods. A bridge claims a pod by a
patch of the version that it saw, so that only one succeeds. Bridges delete the pods of a bridge
without a fresh lease. They list pods every few seconds, because a watch may miss events.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import anyio

from bridge.errors import SandboxError
from bridge.model import Limits
from bridge.sandbox.kubernetes import faults, pod
from bridge.sandbox.kubernetes.cluster import Cluster
from bridge.sandbox.kubernetes.faults import Document

logger = logging.getLogger(__name__)

TEND_SECONDS = 5.0  # Between two looks, unless a run claims a pod.
LOOK_SECONDS = 20.0  # A slow API server may delay a look; the next look does the rest.
LEASE_SECONDS = 60  # Longer than a slow look and the longest pause after it.


class WarmPods:
    """The service's warm pods, as one bridge manages them.

    Attributes:
        problem: The error of the last look, if any.
        mine: The names of this bridge's used pods.
    """

    def __init__(self, cluster: Cluster, template: pod.Template) -> None:
        self.cluster = cluster
        self._template = template
        self._settings = template.settings
        self._owner = template.owner
        self._limits: Limits | None = None
        self._taken = anyio.Event()
        self._labels = {pod.APP_LABEL: pod.APP, pod.SERVICE_LABEL: self._settings.service}
        self.problem = ""
        self.mine: set[str] = set()

    async def claim(self, limits: Limits) -> Document | None:
        """Claim a warm pod for a run; return None if there is none with these limits."""
        # No warm pods with longer limits: sessions are few.
        if limits.timeout <= 3600.0:
            self._limits = limits
        self._taken.set()
        if not self._settings.warm:
            return None
        waiting = {pod.STATE_LABEL: "warm", pod.SHAPE_LABEL: self._template.shape(limits)}
        usable = [
            each
            for each in await self._list(self.cluster.pods, waiting)
            if faults.is_running(each)
            and not (faults.restarts(each) or self._is_old(each))
            and "deletionTimestamp" not in each["metadata"]
        ]
        # In random order, so that two bridges rarely try the same pod.
        for each in random.sample(usable, len(usable)):
            name = each["metadata"]["name"]
            claim = {
                "resourceVersion": each["metadata"]["resourceVersion"],
                "labels": {pod.STATE_LABEL: "used", pod.OWNER_LABEL: self._owner},
                "ownerReferences": list(self._template.references) or None,
            }
            self.mine.add(name)
            try:
                return await self.cluster.patch(f"{self.cluster.pods}/{name}", {"metadata": claim})
            except BaseException as error:
                self.mine.discard(name)
                if not faults.is_gone(error):
                    raise
        return None

    async def tend(self) -> None:
        """Renew the lease, sweep, and keep this bridge's share warm, until cancelled."""
        pause = TEND_SECONDS
        while True:
            self._taken = anyio.Event()
            try:
                with anyio.fail_after(LOOK_SECONDS):
                    await self._look()
                self.problem, pause = "", TEND_SECONDS
            except (SandboxError, TimeoutError) as error:
                if not self.problem:
                    logger.warning("the warm pods cannot be managed: %s", error)
                self.problem = str(error) or f"No look at the pods ended in {LOOK_SECONDS:g} s."
                pause = min(pause * 2, LOOK_SECONDS)
            with anyio.move_on_after(pause):
                await self._taken.wait()

    async def _look(self) -> None:
        pods, bridges, _ = await self._swept()
        if self._limits is None:
            return
        waiting = [each for each in pods if _label(each, pod.STATE_LABEL) == "warm"]
        own = [each for each in waiting if _label(each, pod.OWNER_LABEL) == self._owner]
        shape = self._template.shape(self._limits)
        for each in list(own):
            if _label(each, pod.SHAPE_LABEL) != shape or self._is_old(each):
                await self.cluster.delete(f"{self.cluster.pods}/{each['metadata']['name']}", each)
                own.remove(each)
        part = share(self._settings.warm, sorted(bridges), self._owner)
        try:
            for _ in range(min(part - len(own), 4)):  # A node starts about three a second.
                made = self._template.manifest(pod.pod_name("warm"), self._limits, "warm")
                await self.cluster.create(self.cluster.pods, made)
        except SandboxError as error:
            if error.code != "quota":
                raise
            # Runs use the quota, so this is no problem.
            logger.info("fewer warm pods than configured: %s", error.message)

    async def sweep(self) -> int:
        return (await self._swept())[2]

    async def _swept(self) -> tuple[list[Document], set[str], int]:
        """Sweep; return the remaining pods, the living bridges and the number of deleted pods."""
        await self.renew()
        # Pods first: the owner of a listed pod had a lease before it.
        pods = await self._list(self.cluster.pods)
        leases = await self._list(self.cluster.leases)
        bridges = {each["metadata"]["name"] for each in leases if self._is_fresh(each)}
        for each in leases:
            if each["metadata"]["name"] not in bridges:
                await self.cluster.delete(f"{self.cluster.leases}/{each['metadata']['name']}", each)
        remaining, removed = [], 0
        for each in pods:
            name, owner = each["metadata"]["name"], _label(each, pod.OWNER_LABEL)
            used = _label(each, pod.STATE_LABEL) == "used" and name not in self.mine
            if owner not in bridges or (owner == self._owner and used):
                logger.info("deleting pod %s, which no bridge uses", name)
                await self.cluster.delete(f"{self.cluster.pods}/{name}", each)
                removed += 1
            else:
                remaining.append(each)
        return remaining, bridges, removed

    async def leave(self) -> None:
        # `delete` skips a changed pod, which another bridge may have claimed.
        while own := await self._list(self.cluster.pods, {pod.OWNER_LABEL: self._owner}):
            for each in own:
                await self.cluster.delete(f"{self.cluster.pods}/{each['metadata']['name']}", each)
        await self.cluster.delete(f"{self.cluster.leases}/{self._owner}")

    async def renew(self) -> None:
        lease = {
            "metadata": {"name": self._owner, "labels": self._labels},
            "spec": {
                "renewTime": self.cluster.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                "leaseDurationSeconds": LEASE_SECONDS,
                "holderIdentity": self._owner,
            },
        }
        try:
            await self.cluster.patch(f"{self.cluster.leases}/{self._owner}", lease)
        except faults.ClusterAnswerError as refusal:
            if refusal.status != 404:
                raise
            # Another task may have created it.
            with faults.ignoring(409):
                await self.cluster.create(self.cluster.leases, lease)

    async def _list(self, path: str, labels: Mapping[str, str] | None = None) -> list[Document]:
        return await self.cluster.list(path, {**self._labels, **(labels or {})})

    def _is_fresh(self, lease: Document) -> bool:
        renewed = _moment((lease.get("spec") or {}).get("renewTime"))
        age = timedelta(seconds=LEASE_SECONDS)
        return renewed is not None and abs(self.cluster.now() - renewed) < age

    def _is_old(self, document: Document) -> bool:
        made = _moment(document["metadata"].get("creationTimestamp"))
        age = timedelta(seconds=self._settings.warm_seconds)
        return faults.has_ended(document) or (made is not None and self.cluster.now() - made > age)


def share(most: int, bridges: Sequence[str], name: str) -> int:
    if name not in bridges:
        return 0
    each, left = divmod(most, len(bridges))
    return each + (bridges.index(name) < left)


def _moment(text: str | None) -> datetime | None:
    """Parse a time; return None for an empty or invalid one."""
    try:
        return datetime.fromisoformat(text or "")
    except ValueError:
        return None


def _label(document: Document, name: str) -> str:
    return str((document["metadata"].get("labels") or {}).get(name, ""))
