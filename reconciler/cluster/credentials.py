"""API server address and credentials, from the official client's configuration.

Owns the lookup order of configurations and the freshness of the token. Knows nothing of requests; `kube` sends them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path

import yaml
from kubernetes.aio import config as client_config
from kubernetes.aio.client import Configuration
from yarl import URL

_UNUSABLE = (
    client_config.ConfigException,
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    KeyError,
    yaml.YAMLError,
)
"""What the client library raises on a configuration or token file that is missing, torn or not what it should
be: it looks into the document without checking its shape."""


class ClusterConfigError(ValueError):
    """No usable cluster configuration; the message says what to set."""


class Credentials:
    """The Authorization header, kept current with the client library and the token file (C44)."""

    def __init__(self, configuration: Configuration, reread: Callable[[Configuration], Awaitable[None]]) -> None:
        """`reread` loads a fresh configuration from the original sources."""
        self._configuration = configuration
        self._reread = reread
        self._renewing = asyncio.Lock()

    async def header(self) -> str:
        """The header's value, "" when the configuration has no token. The client library rereads a mounted token
        every minute; while the file is being replaced the last token stays in use."""
        with contextlib.suppress(*_UNUSABLE):
            told = await self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
            return (told or "").strip()
        keys = self._configuration.api_key
        return (keys.get("BearerToken") or keys.get("authorization") or "").strip()

    async def renew(self, refused: str) -> None:
        """Read the token again now, unless another caller did since the header `refused` was sent."""
        async with self._renewing:
            if await self.header() != refused:
                return
            fresh = Configuration()
            with contextlib.suppress(*_UNUSABLE):
                await self._reread(fresh)
                self._configuration.api_key = fresh.api_key
                self._configuration.refresh_api_key_hook = fresh.refresh_api_key_hook


async def discover(kubeconfig: str | None, context: str | None) -> tuple[Configuration, Credentials]:
    """Looks in the order of kubectl and in-cluster clients: `kubeconfig`, else $KUBECONFIG, else the pod's service
    account, else ~/.kube/config. Raises `ClusterConfigError`."""

    async def read(configuration: Configuration) -> None:
        await _read_configuration(configuration, kubeconfig, context)

    configuration = Configuration()
    try:
        await read(configuration)
    except ClusterConfigError:
        raise
    except _UNUSABLE as error:
        where = f"kubeconfig {kubeconfig}" if kubeconfig else "the cluster's configuration"
        raise ClusterConfigError(f"{where} cannot be used: {error}") from error
    return configuration, Credentials(configuration, read)


async def _read_configuration(configuration: Configuration, kubeconfig: str | None, context: str | None) -> None:
    home = Path.home() / ".kube" / "config"
    source = kubeconfig or os.environ.get("KUBECONFIG")
    if not source and os.environ.get("KUBERNETES_SERVICE_HOST"):
        client_config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        return
    source = source or str(home)
    if not any(Path(part).expanduser().is_file() for part in source.split(os.pathsep)):
        raise ClusterConfigError(
            f"no kubeconfig at {source} and not inside a cluster: give --kubeconfig or set KUBECONFIG"
        )
    await client_config.load_kube_config(  # type: ignore[no-untyped-call]
        source, context=context, client_configuration=configuration
    )


def proxy_from_environment(base: str) -> str:
    """HTTPS_PROXY and NO_PROXY, read once: aiohttp's `trust_env` would read them in a thread per request."""
    url = URL(base)
    if urllib.request.proxy_bypass(f"{url.host}:{url.port}"):
        return ""
    return urllib.request.getproxies().get(url.scheme, "")
