# Both bases can be pinned by digest:
#   docker build --build-arg BUILD_IMAGE=golang:1.26-bookworm@sha256:… \
#                --build-arg RUNTIME_IMAGE=gcr.io/distroless/static-debian12:nonroot@sha256:… .
ARG BUILD_IMAGE=golang:1.26-bookworm
ARG RUNTIME_IMAGE=gcr.io/distroless/static-debian12:nonroot

FROM ${BUILD_IMAGE} AS build
WORKDIR /src
# Modules first: they change less often than the code.
COPY go.mod go.sum ./
RUN go mod download
COPY cmd/unlocker cmd/unlocker
COPY internal internal
ARG VERSION=unknown
ARG REVISION=unknown
ARG BRANCH=unknown
ARG BUILDDATE=unknown
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false \
      -ldflags "-s -w \
        -X github.com/prometheus/common/version.Version=${VERSION} \
        -X github.com/prometheus/common/version.Revision=${REVISION} \
        -X github.com/prometheus/common/version.Branch=${BRANCH} \
        -X github.com/prometheus/common/version.BuildDate=${BUILDDATE} \
        -X github.com/prometheus/common/version.BuildUser=docker" \
      -o /unlocker ./cmd/unlocker

FROM ${RUNTIME_IMAGE}
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="unlocker" \
      org.opencontainers.image.description="Keeps distributed mutexes in etcd safe to live with" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /unlocker /unlocker
# By number, so that Kubernetes can tell that it is not root.
USER 65532:65532
EXPOSE 9480
ENTRYPOINT ["/unlocker"]
CMD ["serve"]
