# Toolherd's verbs. Each does its own set-up; see CONTRIBUTING.md.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

MODULES := proto migrations pkg services/registry services/toolproxy services/taskworker services/notifier cmd/toolherd test
BIN := $(CURDIR)/bin
TESTFLAGS ?=

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-10s %s\n", $$1, $$2}'

# The tools are pinned in tools/go.mod and rebuilt when it changes.
$(BIN)/.tools: tools/go.mod tools/go.sum
	GOWORK=off GOBIN=$(BIN) go -C tools install tool
	@touch $@

.PHONY: tools
tools: $(BIN)/.tools

.PHONY: gen
gen: tools ## generate Go from the protos
	$(BIN)/buf generate

.PHONY: fmt
fmt: tools ## format everything
	gofmt -w $$(git ls-files '*.go' | grep -v '^proto/gen/')
	$(BIN)/buf format -w

.PHONY: tidy
tidy: ## go mod tidy in every module
	for m in $(MODULES) tools; do (cd $$m && GOWORK=off go mod tidy); done

.PHONY: lint
lint: tools ## golangci-lint over every module
	$(BIN)/golangci-lint run $(addprefix ./,$(addsuffix /...,$(MODULES)))

.PHONY: verify
verify: tools ## everything generated, tidy, formatted, linted; every module builds on its own
	./tools/verify $(MODULES)

.PHONY: test
test: ## every test of every module, on SQLite and Postgres, with real partners
	go test $(TESTFLAGS) work

.PHONY: race
race: ## the same under the race detector, in random order
	go test -race -shuffle=on $(TESTFLAGS) work

.PHONY: bench
bench: ## the table of docs/benchmarks.md: ratios beside a baseline in the same run
	go test ./test/bench -count=1 -v -run TestTable -timeout 20m -rounds 9 -per 1500ms -peers
	cd services/taskworker && go test ./internal/task/pgstore -count=1 -run '^$$' -bench Claim -benchtime 1x -timeout 20m -rows 1000000

.PHONY: run
run: ## the all-in-one with the demo server
	go run ./cmd/toolherd up --mcp-config examples/mcp.json
