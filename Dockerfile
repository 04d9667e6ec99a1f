# Holdfast as a container. `docker-compose.yml` runs it in its production shape.
FROM rust:1-bookworm AS build
WORKDIR /holdfast
COPY . .
RUN cargo build --release --locked --bin holdfast

FROM debian:bookworm-slim
# curl asks the health check's question.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates curl \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --no-create-home --home-dir /nonexistent --uid 10001 holdfast
COPY --from=build /holdfast/target/release/holdfast /usr/local/bin/holdfast
USER 10001
# Readiness and figures are for those inside, and have a port of their own.
ENV HOLDFAST_LISTEN=0.0.0.0:8080 HOLDFAST_OPERATIONS_LISTEN=0.0.0.0:8081 HOLDFAST_LOG_FORMAT=json
EXPOSE 8080 8081
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s \
    CMD ["curl", "--silent", "--fail", "--output", "/dev/null", "http://127.0.0.1:8081/readyz"]
ENTRYPOINT ["holdfast"]
CMD ["serve"]
