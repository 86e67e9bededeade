# syntax=docker/dockerfile:1
# Two images from one file:
#   docker build --target api    --tag obscura-api .      the web process: no torch, small
#   docker build --target worker --tag obscura-worker .   the process that trains: torch with CUDA libraries, large
# Both run as an unprivileged user, need no writable path but /var/lib/obscura and /tmp, and hold no secret.
# released 2026-08-13
ARG PYTHON_TAG=3.11.16-slim-bookworm

FROM python:${PYTHON_TAG} AS base
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PATH=/opt/venv/bin:$PATH \
    OBSCURA_DATA_DIR=/var/lib/obscura
WORKDIR /app
# The same numeric user in both images, because they share the data volume.
RUN groupadd --gid 10001 obscura \
    && useradd --uid 10001 --gid obscura --no-create-home --home-dir /tmp --shell /usr/sbin/nologin obscura \
    && install --directory --owner obscura --group obscura --mode 0750 /var/lib/obscura


FROM base AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
RUN python -m venv /opt/venv


# Dependencies first: their layer is rebuilt only when they change. pip rejects every file whose hash is not listed.
FROM build AS build-worker
COPY deploy/requirements-worker.txt ./
RUN pip install --no-deps --require-hashes --requirement requirements-worker.txt
COPY . .
RUN pip install --no-deps --editable ./obscura --editable .


FROM build AS build-api
COPY deploy/requirements-api.txt ./
RUN pip install --no-deps --require-hashes --requirement requirements-api.txt
COPY . .
RUN pip install --no-deps --editable ./obscura --editable .


# The documentation is generated from the code. The tools that build it stay in this stage.
FROM build AS build-docs
COPY deploy/requirements-docs.txt ./
RUN pip install --no-deps --require-hashes --requirement requirements-docs.txt
COPY . .
RUN pip install --no-deps --editable ./obscura --editable . && python -m mkdocs build --quiet


# The project stays in /app as a checkout: the migrations lie beside the packages.
FROM base AS worker
COPY --from=build-worker /opt/venv /opt/venv
COPY --from=build-worker /app /app
ENV OBSCURA_MODE=celery
USER obscura
VOLUME /var/lib/obscura
# Asks this very worker through the broker; a training in progress does not keep it from answering.
HEALTHCHECK --interval=60s --timeout=20s --start-period=60s --retries=3 \
    CMD ["sh", "-c", "celery --app workers.supervise.app inspect ping --timeout 10 --destination celery@$(hostname) >/dev/null"]
# One training at a time; the second process draws free samples meanwhile.
CMD ["celery", "--app", "workers.supervise.app", "worker", "--concurrency", "3", "--loglevel", "info"]


# Last, so that a plain `docker build .` makes the small image.
FROM base AS api
# `obscura backup` and `obscura restore` run pg_dump and pg_restore, of the major version of the server in docker-compose.yml.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates postgresql-common \
    && /usr/share/postgresql-common/pgdg/apt.postgresql.org.sh -y \
    && apt-get install --yes --no-install-recommends postgresql-client-16 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build-api /opt/venv /opt/venv
COPY --from=build-api /app /app
COPY --from=build-docs /app/service/site /app/service/site
ENV OBSCURA_MODE=celery \
    OBSCURA_HOST=0.0.0.0 \
    OBSCURA_PORT=8420
USER obscura
VOLUME /var/lib/obscura
EXPOSE 8420
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8420/v1/health/ready', timeout=4)"]
CMD ["obscura", "up"]
