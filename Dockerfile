# One image for each program, chosen by SERVICE: registry, toolproxy, taskworker, notifier or toolherd.
#
#   docker build --build-arg SERVICE=taskworker --tag toolherd/taskworker .
#
# The image holds one static program and runs it as a user without rights. It has no shell and no language runtime: a
# toolproxy made of it reaches MCP servers over HTTP. For stdio servers copy /usr/local/bin/toolherd-service into an image that
# has what they need, such as node; docs/deploy.md shows how.

FROM golang:1.26 AS build
ARG SERVICE
WORKDIR /src
COPY . .
ENV CGO_ENABLED=0 GOCACHE=/cache/build GOMODCACHE=/cache/modules
RUN --mount=type=cache,target=/cache \
    case "$SERVICE" in \
      toolherd) dir=cmd/toolherd ;; \
      registry|toolproxy|taskworker|notifier) dir="services/$SERVICE/cmd/$SERVICE" ;; \
      *) echo "SERVICE is '$SERVICE', want registry, toolproxy, taskworker, notifier or toolherd" >&2; exit 1 ;; \
    esac \
    && mkdir -p /out/identity /out/reports \
    && go build -trimpath -ldflags="-s -w" -o /out/toolherd-service "./$dir"

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/toolherd-service /usr/local/bin/toolherd-service
# Volumes that are mounted here belong to the user who runs the program.
COPY --from=build --chown=65532:65532 /out/identity /identity
COPY --from=build --chown=65532:65532 /out/reports /reports
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/toolherd-service"]
