# Both base images can be pinned by digest; `make image` sets the other arguments.
#   docker build --build-arg BUILD_IMAGE=golang:1.26-bookworm@sha256:… \
#                --build-arg RUNTIME_IMAGE=gcr.io/distroless/static-debian12:nonroot@sha256:… .
ARG BUILD_IMAGE=docker.io/library/golang:1.26-bookworm
ARG RUNTIME_IMAGE=gcr.io/distroless/static-debian12:nonroot

# Go cross-compiles, so no emulation is needed.
FROM --platform=${BUILDPLATFORM} ${BUILD_IMAGE} AS build
WORKDIR /src
# Modules first, because they change less often than the code.
ARG GOPROXY
COPY go.mod go.sum ./
COPY mutex/go.mod mutex/go.sum mutex/
RUN go mod download
COPY cmd/unlocker cmd/unlocker
COPY internal internal
COPY mutex mutex
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=unknown
ARG REVISION=unknown
ARG BRANCH=unknown
ARG BUILDDATE=unknown
RUN CGO_ENABLED=0 GOOS=${TARGETOS} GOARCH=${TARGETARCH} go build -trimpath -buildvcs=false \
      -ldflags "-s -w \
        -X github.com/prometheus/common/version.Version=${VERSION} \
        -X github.com/prometheus/common/version.Revision=${REVISION} \
        -X github.com/prometheus/common/version.Branch=${BRANCH} \
        -X github.com/prometheus/common/version.BuildDate=${BUILDDATE} \
        -X github.com/prometheus/common/version.BuildUser=make" \
      -o /unlocker ./cmd/unlocker
# The time of the commit, so that the same commit gives the same layer.
ARG SOURCE_DATE_EPOCH=0
RUN touch -d "@${SOURCE_DATE_EPOCH}" /unlocker

# No shell and no packages: only CA certificates, a user, and the binary.
FROM ${RUNTIME_IMAGE}
ARG VERSION=unknown
ARG REVISION=unknown
ARG BUILDDATE=unknown
LABEL org.opencontainers.image.title="unlocker" \
      org.opencontainers.image.description="Alerts on overdue etcd locks and removes expired ones" \
      org.opencontainers.image.source="https://github.com/etcd-unlocker/unlocker" \
      org.opencontainers.image.documentation="https://github.com/etcd-unlocker/unlocker/blob/main/docs/operations.md" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.created="${BUILDDATE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /unlocker /unlocker
# Numeric, so that Kubernetes can verify that it is not root.
USER 65532:65532
# unlocker looks for unlocker.yaml in the working directory.
WORKDIR /
EXPOSE 9480 9481
ENTRYPOINT ["/unlocker"]
CMD ["serve"]
