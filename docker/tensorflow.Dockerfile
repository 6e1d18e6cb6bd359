# An image for `dpcompare plan --format kubernetes`: docker build -f docker/tensorflow.Dockerfile -t REGISTRY/dpcompare:tensorflow .
FROM python:3.11-slim
COPY . /src
RUN pip install --no-cache-dir '/src[tensorflow-cuda]' && rm -rf /src
