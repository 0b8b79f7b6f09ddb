# The agent: `edl-agent run` (launcher), `edl-agent sidecar`, and edl_agent for programs built on this image.
# The context is what docker/build_images.py lays out; nothing is fetched from the network.
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS build
COPY wheels/ /build/wheels/
COPY install.py agent.txt /build/
# Exec forms only: the base needs python3 and no shell.
RUN ["python3", "/build/install.py", "/opt/edl", "/build/agent.txt"]

FROM ${BASE}
ARG VERSION REVISION=unknown
LABEL org.opencontainers.image.title="edl-agent" \
      org.opencontainers.image.description="Agents of elastic parameter-server training: launcher and sidecar" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/edl /opt/edl
ENV PATH=/opt/edl/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /
ENTRYPOINT ["edl-agent"]
