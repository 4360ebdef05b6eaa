# The edge: WebSocket, SSE and HTTP in front, gRPC behind. No torch.
FROM python:3.11-slim-bookworm AS dependencies
WORKDIR /src
# The extra's dependencies alone: this layer is rebuilt when pyproject or the pins change, not the code.
COPY pyproject.toml constraints.txt ./
RUN touch README.md LICENSE \
 && python -m venv /venv \
 && /venv/bin/pip install --no-cache-dir -c constraints.txt ".[gateway]" \
 && /venv/bin/pip uninstall -y seedance

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="seedance-gateway" \
      org.opencontainers.image.description="Streams a language model's tokens exactly once to browsers and programs." \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --system --uid 10001 --no-create-home seedance
WORKDIR /app
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 SEEDANCE_HOST=0.0.0.0
COPY --from=dependencies /venv /venv
COPY seedance seedance
COPY mesh mesh
# Of the router only its pure policy: the gateway decides by the same rule.
COPY router/__init__.py router/__init__.py
COPY router/policy router/policy
COPY gateway gateway
USER seedance
EXPOSE 8080
STOPSIGNAL SIGTERM
# The start period is an upper bound: the first success ends it.
HEALTHCHECK --interval=5s --timeout=5s --start-period=300s --retries=6 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/readyz', timeout=3)"]
ENTRYPOINT ["python", "-m", "gateway"]
