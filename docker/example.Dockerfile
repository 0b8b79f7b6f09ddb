# The example of examples/digits: programs that import edl_agent, in numpy. Copy it for a job of your own.
# The context is what docker/build_images.py lays out; nothing is fetched from the network.
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS build
COPY wheels/ /build/wheels/
COPY install.py example.txt /build/
# Exec forms only: the base needs python3 and no shell.
RUN ["python3", "/build/install.py", "/opt/edl", "/build/example.txt"]

FROM ${BASE}
ARG VERSION REVISION=unknown
LABEL org.opencontainers.image.title="edl-digits" \
      org.opencontainers.image.description="Handwritten digits, learnt by pservers and trainers that come and go" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/edl /opt/edl
COPY examples /app/examples
ENV PATH=/opt/edl/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /app
CMD ["python", "-m", "examples.digits.trainer"]
