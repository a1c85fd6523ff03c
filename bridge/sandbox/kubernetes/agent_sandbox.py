"""Pods that agent-sandbox hands out: claims on a SandboxWarmPool, through its own SDK.

The SDK only claims and releases. It runs commands one at a time, without a channel in both
directions, so the bridge attaches to the pod as to its own. What the pod is, the pool's template
says: its command has to be `pod.COMMAND`, with stdin open.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
import anyio.to_thread
from k8s_agent_sandbox.exceptions import SandboxError as SdkError
from k8s_agent_sandbox.sandbox import Sandbox
from k8s_agent_sandbox.sandbox_client import SandboxClient
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from bridge.errors import CapacityError
from bridge.sandbox.kubernetes import faults, pod
from bridge.sandbox.kubernetes.cluster import Cluster
from bridge.sandbox.kubernetes.faults import Document
from bridge.settings.kubernetes import Kubernetes

SPARE_SECONDS = 10.0
"""For the SDK's own requests, beyond the time that it waits."""

logger = logging.getLogger(__name__)


class ClaimedPods:
    """Claims on one warm pool. Making one loads a kubeconfig, and blocks.

    Args:
        seconds: A claim's longest life, after which the controller ends it.
    """

    def __init__(self, cluster: Cluster, settings: Kubernetes, seconds: int) -> None:
        self._cluster = cluster
        self._settings = settings
        self._seconds = seconds
        if cluster.config.fname is None:
            loaded = client.Configuration()
            config.load_incluster_config(loaded)  # type: ignore[no-untyped-call]
            api = client.ApiClient(loaded)
        else:
            api = config.new_client_from_config(  # type: ignore[no-untyped-call]
                str(cluster.config.fname), context=cluster.config.context_name
            )
        self._sdk: SandboxClient[Sandbox] = SandboxClient(api_client=api)

    @asynccontextmanager
    async def claim(self) -> AsyncIterator[Document]:
        """Claim a pod; leaving releases it.

        Raises:
            SandboxError: The pool gives none in time, or the API server does not answer.
        """
        name = pod.pod_name("claim")
        ask = partial(
            self._sdk.create_sandbox,
            self._settings.warm_pool,
            self._cluster.namespace,
            int(self._settings.room_seconds),
            claim_name=name,
            shutdown_after_seconds=self._seconds,
        )
        try:
            # Named here, so that one is released whose thread was left behind.
            with anyio.fail_after(self._settings.room_seconds + SPARE_SECONDS):
                found = await anyio.to_thread.run_sync(ask, abandon_on_cancel=True)
                place = await anyio.to_thread.run_sync(found.get_pod_name, abandon_on_cancel=True)
            seen = await self._cluster.get(f"{self._cluster.pods}/{place}")
            if seen is None:
                raise faults.lost(None, "")
            yield seen
        except ApiException as error:
            raise faults.refusal(int(error.status or 500), str(error.body).encode()) from error
        except (SdkError, HTTPError, TimeoutError) as error:
            message = "agent-sandbox gives no pod."
            raise CapacityError(message, host_detail=repr(error)) from error
        finally:
            release = partial(self._sdk.delete_sandbox, name, self._cluster.namespace)
            with anyio.CancelScope(shield=True), anyio.move_on_after(SPARE_SECONDS):
                try:
                    await anyio.to_thread.run_sync(release, abandon_on_cancel=True)
                except (ApiException, SdkError, HTTPError) as error:
                    logger.warning("claim %s was not released: %s", name, error)
