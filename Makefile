# What one does with a checkout. `make` lists the targets.

.DEFAULT_GOAL := help
.PHONY: help demo demo-gateway demo-te release package test soak check bench pictures fuzz fmt clean

help: ## List these targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## Run the shop on this machine, break it in seven ways under load, and print what callers saw
	@scripts/setup.sh build demo
	cargo build --release --workspace --bin fairmesh
	@"$${CARGO_TARGET_DIR:-target}/release/fairmesh" demo $(ARGS)

demo-gateway: ## Run two tenants with equal addresses behind one gateway, in network namespaces (needs root), and print who reached whom
	@scripts/setup.sh build demo hosts
	cargo build --release --workspace --bin fairmesh
	@python3 examples/gateway/demo.py --binary "$${CARGO_TARGET_DIR:-target}/release/fairmesh" $(ARGS)

demo-te: ## Simulate one region at three times its load under Waterfall and under the optimizer, side by side, with a picture
	@scripts/setup.sh build
	cargo build --release --workspace --example demo_te
	@"$${CARGO_TARGET_DIR:-target}/release/examples/demo_te" scenarios/app-boutique.yaml "$${CARGO_TARGET_DIR:-target}/demo-te.svg"

release: ## Build the binary for production, guided by a profile of what runs most, and say where it is
	@scripts/release.sh

package: ## Package the binary: a tarball, a deb, an OCI image, and debug symbols; BINARY= is one that is built already
	@scripts/package.sh

test: ## Run every test, or those of ARGS= (make test ARGS=--help), and print how many passed
	@scripts/setup.sh build demo etcd hosts systemd
	@if command -v go >/dev/null; then scripts/setup.sh h2spec || true; scripts/setup.sh grpc-go || true; scripts/setup.sh go-spiffe || true; fi
	@scripts/setup.sh grpcio || true
	@scripts/setup.sh callers || true
	@scripts/setup.sh prometheus || true
	@scripts/setup.sh browser || true
	@scripts/test.sh $(ARGS)

soak: ## Cause outages, replace all there is under full load, stream, send by the kernel, fuzz what it reads, for 10 minutes each or SOAK_MINUTES=, attack every listener, and check what everybody saw
	@scripts/setup.sh build etcd hosts fuzz
	SOAK_MINUTES=$${SOAK_MINUTES:-10} cargo test --release --workspace --test outages -- --nocapture outages_lose_no_write_no_order_no_call
	SOAK_MINUTES=$${SOAK_MINUTES:-10} cargo test --release --workspace --test faults -- --nocapture no_request_fails_under_full_load
	SOAK_MINUTES=$${SOAK_MINUTES:-10} cargo test --release --workspace --test faults -- --nocapture streams_polls_and_transfers
	SOAK_MINUTES=$${SOAK_MINUTES:-10} cargo test --release --workspace --test faults -- --nocapture kernel::soak
	SOAK_MINUTES=$${SOAK_MINUTES:-10} cargo test --release --workspace --test faults -- --nocapture kernel::million
	SOAK_MINUTES=$${SOAK_MINUTES:-10} cargo test --release --workspace --test faults -- --nocapture kernel::pipelined
	GATEWAY_DAYS=100 cargo test --release -p fairmesh-sim --test gateway_day -- --nocapture
	cargo test --release --workspace --test gateway -- --nocapture --ignored launches::
	FLEETS=500 cargo test --release -p fairmesh-te --test fleets
	fuzz/run $$((60 * $${SOAK_MINUTES:-10})) kernel_head
	SOAK_MINUTES=1 cargo test --release --workspace --test faults -- --nocapture --include-ignored limits:: services::
	SOAK_MINUTES=1 cargo test --release --workspace --test gateway routes::
	SOAK_MINUTES=1 cargo test --release --workspace --test kill --test power
	SOAK_MINUTES=1 cargo test --release --workspace --test identity rotation::
	cargo test --release --workspace --test packages -- --nocapture

check: ## Check format, clippy, documentation, the library's API and its number of crates, the dashboards, the web page, and the dependencies' licences and sources
	@scripts/setup.sh build demo deny
	@scripts/check.sh

bench: ## Run the benchmarks: pick and library
	@bench/run pick
	@bench/run library

pictures: ## Play the applications of the simulator by each planner, and write the pictures and figures of docs/optimizer
	@scripts/setup.sh build
	cargo run --release --workspace --example applications docs/optimizer scenarios/app-*.yaml

fuzz: ## Run each fuzz target for 30 s, or for SECONDS=
	@scripts/setup.sh build fuzz
	@fuzz/run $(SECONDS)

fmt: ## Format the code
	cargo fmt --all

clean: ## Remove what was built
	cargo clean
