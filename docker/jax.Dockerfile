# An image for `dpcompare plan --format kubernetes`: docker build -f docker/jax.Dockerfile -t REGISTRY/dpcompare:jax .
FROM python:3.11-slim
COPY . /src
RUN pip install --no-cache-dir '/src[jax-cuda]' && rm -rf /src
