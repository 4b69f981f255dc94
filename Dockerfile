# An image with onnxc installed in /usr/local, and what its output is linked with: C and C++ compilers, CMake, pkg-config.
#
#     docker build -t onnxc .
#     docker run --rm -v "$PWD:/work" onnxc onnxc model.onnx -o model.o
#
# The stage `wheel` has the Python package in /wheels: docker build --target wheel --output wheels .

# With the oldest glibc that objects and wheels should run on.
FROM rust:1.95-bullseye AS build
RUN apt-get update && apt-get install -y --no-install-recommends python3-pip python3-venv && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN make install PREFIX=/opt/onnxc
RUN python3 -m venv /opt/python && ONNXC_PREFIX=/opt/onnxc make wheel PYTHON=/opt/python/bin/python

FROM scratch AS wheel
COPY --from=build /source/target/wheels /wheels

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ libc6-dev make cmake pkg-config \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/onnxc /usr/local
WORKDIR /work
CMD ["onnxc", "--help"]
