# The ledger of usage. No torch.
FROM python:3.11-slim-bookworm AS dependencies
WORKDIR /src
# The extra's dependencies alone: this layer is rebuilt when pyproject or the pins change, not the code.
COPY pyproject.toml constraints.txt ./
RUN touch README.md LICENSE \
 && python -m venv /venv \
 && /venv/bin/pip install --no-cache-dir -c constraints.txt ".[metering,postgres]" \
 && /venv/bin/pip uninstall -y seedance

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="seedance-metering" \
      org.opencontainers.image.description="Takes every usage event into the ledger once." \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --system --uid 10001 --no-create-home seedance \
 && install -d -o seedance /data
WORKDIR /app
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 SEEDANCE_HOST=0.0.0.0
COPY --from=dependencies /venv /venv
COPY deploy/docker/is_serving.py /usr/local/bin/
COPY seedance seedance
COPY mesh mesh
COPY metering metering
USER seedance
# The SQLite ledger; a PostgreSQL address makes the volume needless.
VOLUME /data
EXPOSE 7090
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s --retries=6 \
  CMD ["python", "/usr/local/bin/is_serving.py", "127.0.0.1:7090"]
ENTRYPOINT ["python", "-m", "metering"]
