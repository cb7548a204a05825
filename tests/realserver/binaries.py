"""The binaries of a real cluster, built once and kept outside the checkout, keyed by version.

`python -m tests.realserver.binaries` builds what lacks: Kubernetes and Helm as tools of the Go modules beside this
file, etcd from Debian. `$KUBEBUILDER_ASSETS` is used as envtest users have it; `$GPU_BINDER_TEST_CACHE` moves the
cache.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TOOLS = Path(__file__).parent / "tools"
SERVER = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
COMMAND = "python -m tests.realserver.binaries"
REASON = f"no API server binaries: build them once with `{COMMAND}` (needs Go; etcd comes from Debian's etcd-server)"


def kubernetes_version() -> str:
    """As go.mod pins it, `v1.36.3`."""
    return _pinned(TOOLS / "kubernetes" / "go.mod", "k8s.io/kubernetes")


def helm_version() -> str:
    return _pinned(TOOLS / "helm" / "go.mod", "helm.sh/helm/v4")


def _pinned(module_file: Path, module: str) -> str:
    found = re.search(rf"^\s*(?:require )?{re.escape(module)} (v\S+)", module_file.read_text(), re.M)
    if found is None:
        raise LookupError(f"{module_file} does not require {module}")
    return found.group(1)


def cache() -> Path:
    """Where this checkout's versions are kept."""
    root = Path(os.environ.get("GPU_BINDER_TEST_CACHE") or Path.home() / ".cache" / "gpu-binder")
    return root / "tools" / f"kubernetes-{kubernetes_version()}_helm-{helm_version()}"


def find(name: str) -> Path | None:
    """A binary, from `$KUBEBUILDER_ASSETS`, the cache, or for etcd the system."""
    places = [Path(assets) for assets in [os.environ.get("KUBEBUILDER_ASSETS", "")] if assets]
    for place in [*places, cache()]:
        if (place / name).is_file():
            return place / name
    if name == "etcd" and (found := shutil.which("etcd")) is not None:
        return Path(found)
    return None


def missing(*names: str) -> list[str]:
    """Which of the binaries cannot be found."""
    return [name for name in names or (*SERVER, "helm") if find(name) is None]


def required() -> bool:
    """Whether a run without them must fail instead of skipping."""
    return any(os.environ.get(name, "") not in ("", "0", "false") for name in ("CI", "GPU_BINDER_REQUIRE_APISERVER"))


@contextmanager
def _locked() -> Iterator[None]:
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build() -> None:
    """Build and install what lacks. Two suites at once wait for each other; a binary appears whole or not."""
    with _locked():
        if find("etcd") is None:
            if os.geteuid() != 0 or shutil.which("apt-get") is None:
                raise SystemExit("etcd is lacking: install it (Debian: etcd-server), or run this as root on Debian")
            _run(["apt-get", "update"])
            _run(["apt-get", "install", "-y", "--no-install-recommends", "etcd-server"])
        version = kubernetes_version()
        major, minor, _ = version.removeprefix("v").split(".")
        base = "k8s.io/component-base/version"
        stamp = f"-s -w -X {base}.gitVersion={version} -X {base}.gitMajor={major} -X {base}.gitMinor={minor}"
        for name in SERVER[1:]:
            _build(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}", stamp)
        helm = "helm.sh/helm/v4/internal/version"
        _build("helm", "helm", "helm.sh/helm/v4/cmd/helm", f"-s -w -X {helm}.version={helm_version()}")


def _build(name: str, module: str, package: str, flags: str) -> None:
    if find(name) is not None:
        return
    target = cache() / name
    partial = target.with_suffix(".partial")
    print(f"building {name}", file=sys.stderr, flush=True)
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
    _run(
        ["go", "build", "-trimpath", "-ldflags", flags, "-o", str(partial), package],
        cwd=TOOLS / module,
        env=environment,
    )
    partial.rename(target)


def _run(command: list[str], cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, env=env, stdout=sys.stderr, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed with code {done.returncode}")


if __name__ == "__main__":
    build()
    print("\n".join(str(find(name)) for name in (*SERVER, "helm")))
