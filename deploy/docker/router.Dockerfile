# Membership and the routing rule. No torch.
FROM python:3.11-slim-bookworm AS dependencies
WORKDIR /src
# The extra's dependencies alone: this layer is rebuilt when pyproject or the pins change, not the code.
COPY pyproject.toml constraints.txt ./
RUN touch README.md LICENSE \
 && python -m venv /venv \
 && /venv/bin/pip install --no-cache-dir -c constraints.txt ".[router]" \
 && /venv/bin/pip uninstall -y seedance

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="seedance-router" \
      org.opencontainers.image.description="Knows which instances live, and who serves whom." \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --system --uid 10001 --no-create-home seedance
WORKDIR /app
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 SEEDANCE_HOST=0.0.0.0
COPY --from=dependencies /venv /venv
COPY deploy/docker/is_serving.py /usr/local/bin/
COPY seedance seedance
COPY mesh mesh
COPY router router
USER seedance
EXPOSE 7070
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s --retries=6 \
  CMD ["python", "/usr/local/bin/is_serving.py", "127.0.0.1:7070"]
ENTRYPOINT ["python", "-m", "router"]
