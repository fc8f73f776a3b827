# The program for container engines. It runs as a user without rights, and needs to write to /state and /tmp alone.
#   docker build -t paygw-batch .
#   docker run --rm --read-only --tmpfs /tmp -v paygw-state:/state paygw-batch init --sandbox
FROM python:3.13-slim-bookworm AS build
WORKDIR /source
RUN python -m venv /opt/paygw-batch
ENV PATH=/opt/paygw-batch/bin:$PATH
COPY requirements.lock ./
RUN pip install --no-cache-dir --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY tooling/sbom.py tooling/
COPY docs/man docs/man
COPY config config
COPY paygw_batch paygw_batch
RUN pip wheel --no-cache-dir --no-index --no-deps --no-build-isolation --wheel-dir wheels . \
    && pip install --no-cache-dir --no-index --no-deps wheels/*.whl \
    && python tooling/sbom.py > /opt/paygw-batch/share/sbom.cdx.json

FROM python:3.13-slim-bookworm
LABEL org.opencontainers.image.title="paygw-batch" \
      org.opencontainers.image.licenses="Apache-2.0" \
      sbom="/opt/paygw-batch/share/sbom.cdx.json"
RUN useradd --uid 10001 --user-group --home-dir /state --no-create-home --shell /usr/sbin/nologin paygw \
    && install --directory --owner=paygw --group=paygw --mode=0700 /state
COPY --from=build /opt/paygw-batch /opt/paygw-batch
ENV PATH=/opt/paygw-batch/bin:$PATH XDG_STATE_HOME=/state PAYGW_IMAGE=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /state
ENTRYPOINT ["paygw-batch"]
