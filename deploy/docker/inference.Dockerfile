# One engine on one machine, with the default model inside: nothing is fetched when it runs.
#   CPU:  docker build -f deploy/docker/inference.Dockerfile .
# Linux wheels of torch carry several GB of CUDA that a CPU never calls; PyTorch keeps an index for
# each kind of machine (https://pytorch.org/get-started/locally): --build-arg TORCH_INDEX=URL
FROM python:3.11-slim-bookworm AS dependencies
ARG TORCH_INDEX=
WORKDIR /src
COPY pyproject.toml constraints.txt ./
RUN python -m venv /venv \
 && /venv/bin/pip install --no-cache-dir -c constraints.txt --no-deps ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
# The extra's dependencies alone: this layer is rebuilt when pyproject or the pins change, not the code.
RUN touch README.md LICENSE \
 && /venv/bin/pip install --no-cache-dir -c constraints.txt ".[inference]" \
 && /venv/bin/pip uninstall -y seedance

# The default model, checked by its digest.
FROM python:3.11-slim-bookworm AS model
WORKDIR /src
COPY constraints.txt .
RUN pip install --no-cache-dir -c constraints.txt rich
COPY launcher/__init__.py launcher/models.py launcher/
RUN mkdir /models && mv "$(python -m launcher.models)" /models/

# The native step, for every instruction set: the image that runs has no compiler.
FROM python:3.11-slim-bookworm AS native
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY inference/__init__.py inference/
COPY inference/native inference/native
RUN mkdir /native && mv "$(python -m inference.native.build /tmp/native)" /native/

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="seedance-inference" \
      org.opencontainers.image.description="Turns prompts into tokens; carries SmolLM2-135M-Instruct (Apache-2.0)." \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --system --uid 10001 --no-create-home seedance
WORKDIR /app
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 SEEDANCE_HOST=0.0.0.0
ENV SEEDANCE_MODEL=/models/SmolLM2-135M-Instruct.Q4_1.gguf
ENV SEEDANCE_MODEL_NAME=SmolLM2-135M-Instruct
ENV SEEDANCE_NATIVE_LIBRARY=/native/seedance_native.so
ENV SEEDANCE_ALIASES=default,seedance-llm-7b
COPY --from=dependencies /venv /venv
COPY --from=model /models /models
COPY --from=native /native /native
COPY deploy/docker/is_serving.py /usr/local/bin/
COPY seedance seedance
COPY mesh mesh
COPY inference inference
USER seedance
EXPOSE 50051
STOPSIGNAL SIGTERM
# The start period is an upper bound: the first success ends it.
HEALTHCHECK --interval=5s --timeout=5s --start-period=300s --retries=6 \
  CMD ["python", "/usr/local/bin/is_serving.py", "127.0.0.1:50051"]
ENTRYPOINT ["python", "-m", "inference"]
