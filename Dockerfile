# Headstock's server on CPUs, as a user without rights. No daemon has built this file yet.
#   docker build -t headstock .
#   docker run --rm -p 8000:8000 -e HEADSTOCK_API_KEY=... -v headstock:/home/headstock/.cache headstock smollm2
FROM python:3.12-slim

# The cpu backend compiles its kernels where it runs.
RUN apt-get update && apt-get install --no-install-recommends --yes g++ && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 10001 headstock

WORKDIR /src
COPY . .
RUN pip install --no-cache-dir --constraint constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu '.[server]' \
    && rm -rf /src/*

USER headstock
WORKDIR /home/headstock
ENV PYTHONUNBUFFERED=1 OMP_WAIT_POLICY=passive
EXPOSE 8000
# Inside a container only the container's own address can be reached from outside; what is published is the host's choice.
ENTRYPOINT ["headstock", "serve", "--host", "0.0.0.0", "--log-format", "json"]
CMD ["smollm2"]
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
STOPSIGNAL SIGTERM
