# gcemil on the CPU, as a user without privileges. Build: docker build -t gcemil .   Run: docker run --rm -v "$PWD":/data gcemil doctor
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
COPY --from=build /wheels /wheels
# The CPU build of torch: without this index pip brings gigabytes of CUDA.
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
        "$(ls /wheels/gcemil-*.whl)[wsi,encoders,report,tables]" \
    && rm -rf /wheels && useradd --create-home gcemil && mkdir /data && chown gcemil /data
USER gcemil
WORKDIR /data
ENTRYPOINT ["gcemil"]
CMD ["--help"]
