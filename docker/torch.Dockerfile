# An image for `dpcompare plan --format kubernetes`: docker build -f docker/torch.Dockerfile -t REGISTRY/dpcompare:torch .
FROM python:3.11-slim
COPY . /src
# g++: the native profile compiles.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir '/src[torch]' && rm -rf /src
