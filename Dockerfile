# The image of the controller, the node agent and the uninstall job.
#
#   docker build -t REGISTRY/gpu-binder:0.1.0 . && docker push REGISTRY/gpu-binder:0.1.0
#   docker build -t REGISTRY/gpu-binder:0.1.0 --build-arg REVISION="$(git rev-parse HEAD)" .   # labelled with the commit
#   docker buildx build --sbom=true --provenance=true -t REGISTRY/gpu-binder:0.1.0 .   # an SBOM of the whole image
#   cyclonedx-py requirements requirements.lock > sbom.json   # an SBOM of the Python side alone
#
# It runs as any user that is not root on a read-only root file system and writes to the mounted journal only.
ARG PYTHON_VERSION=3.11

FROM python:${PYTHON_VERSION}-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
RUN python -m venv --without-pip /opt/gpu-binder
# Dependencies first: they change less often than the code, and only as the lock file says.
COPY requirements.lock ./
RUN pip --python /opt/gpu-binder install --require-hashes --no-deps --only-binary :all: -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY journal journal
COPY reconciler reconciler
COPY webhooks webhooks
# The one build tool, at one version: the lock file holds what runs, not what builds.
RUN echo "setuptools==80.9.0" > /tmp/build.txt \
 && PIP_CONSTRAINT=/tmp/build.txt pip --python /opt/gpu-binder install --no-deps . \
 && python -m compileall -q /opt/gpu-binder/lib \
 && /opt/gpu-binder/bin/gpu-binder --help > /dev/null

FROM python:${PYTHON_VERSION}-slim
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="gpu-binder" \
      org.opencontainers.image.description="Orders, holds, attaches, explains and bills GPUs on a multi-tenant KubeVirt cloud" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/gpu-binder /opt/gpu-binder
COPY --from=build /src/LICENSE /licenses/LICENSE
# No bytecode is written at run time: the root file system is read-only, and the build compiled everything.
ENV PATH=/opt/gpu-binder/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# Not a name: runAsNonRoot can only be checked on a number.
USER 65532:65532
WORKDIR /tmp
EXPOSE 8443 8080
# The process is PID 1 and handles SIGTERM itself: no shell, no init in between.
STOPSIGNAL SIGTERM
ENTRYPOINT ["gpu-binder"]
CMD ["run"]
