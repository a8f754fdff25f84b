# SPDX-License-Identifier: Apache-2.0
#
# Usher's image by way of a container engine, for those who prefer it to `make image`:
#
#   docker buildx build --platform linux/amd64,linux/arm64 --build-arg VERSION=0.1.0 -t example.com/usher:0.1.0 .
#
# `make image` is what releases and tests use: it needs no engine, and its bytes are
# the same every time. This file is not built by the project's own tests, and its base images have
# tags here, not digests: pin them before you rely on what you build.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS TARGETARCH
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY api api
COPY cmd cmd
COPY internal internal
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -ldflags='-s -w -buildid=' -o /usher ./cmd/usher

FROM gcr.io/distroless/static:nonroot
ARG VERSION=dev
LABEL org.opencontainers.image.title="usher" \
      org.opencontainers.image.source="https://github.com/usher-dev/usher" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION"
COPY LICENSE /usr/share/doc/usher/LICENSE
COPY --from=build /usher /usr/local/bin/usher
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/usher"]
