# The Diffulex server as an image: docs/install.md has the commands. `scripts/dockerfile_check` executes these steps without Docker.

FROM rust:1.95-slim-bookworm AS build
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /usr/src/diffulex
COPY . .
RUN cargo build --release --locked --package diffulex-server \
 && strip target/release/diffulex-server

FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates libstdc++6 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 999 --user-group --home-dir /var/lib/diffulex --shell /usr/sbin/nologin diffulex \
 && install --directory --owner=diffulex --group=diffulex --mode=0750 /var/lib/diffulex
COPY --from=build /usr/src/diffulex/target/release/diffulex-server /usr/bin/diffulex-server
COPY LICENSE /usr/share/doc/diffulex-server/LICENSE
COPY deploy/docker-health /usr/bin/docker-health

# Models by name are in /var/lib/diffulex/huggingface, crash reports in /var/lib/diffulex/crashes.
ENV HOME=/var/lib/diffulex HF_HOME=/var/lib/diffulex/huggingface XDG_STATE_HOME=/var/lib
# Inside a container all addresses are the container's own; which of them others reach is decided by `docker run --publish`.
ENV DIFFULEX_HOST=0.0.0.0
VOLUME /var/lib/diffulex
WORKDIR /var/lib/diffulex
USER diffulex
EXPOSE 8000
# Healthy is a server that accepts requests. A model that is fetched first may take its time.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60m --start-interval=1s --retries=6 CMD ["docker-health"]
ENTRYPOINT ["diffulex-server"]
CMD ["serve"]
