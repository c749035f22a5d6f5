# Every target does its own set-up (scripts/setup.sh); `make help` lists them.

SHELL := /bin/bash
export PATH := $(PATH):$(HOME)/.cargo/bin

# Namespaces and CRIU need root; building does not.
SUDO := $(if $(filter 0,$(shell id -u)),,sudo -E)

.DEFAULT_GOAL := help
# Concurrent set-ups would wait for apt's lock.
.NOTPARALLEL:
.PHONY: help setup setup-demo setup-check build check test demo demo-vm bench-verbs bench-move bench-drain bench-mpi bench-net bench-vm bench-plan bench-telemetry sim-plan guest-image soak soak-vm soak-vm-mpi fuzz lint man clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS=$$'\t' read -r name text; do \
	    printf '  make %-12s %s\n' "$$name" "$$text"; done

setup: ## Install missing packages, the Rust toolchain and CRIU
	@scripts/setup.sh

setup-demo: ## Install only what `make build` and `make demo` need
	@scripts/setup.sh demo

setup-check: ## Install only what `make check` needs
	@scripts/setup.sh check

build: setup-demo ## Build target/release/transhume, and in target/release/lib the libraries and the agent of guests
	@cargo build --locked --release --workspace
	@scripts/guest-agent.sh

check: setup-check ## Check formatting and lints, run the tests that need neither root nor CRIU (under 3 minutes once built)
	@scripts/test.sh check

test: setup ## Check formatting and lints, run all tests (under 15 minutes once built)
	@scripts/test.sh

demo: setup-demo ## Move an instance under RDMA traffic, and measure the blackouts (under 5 minutes)
	@cargo build --locked --release -p transhume -p libibverbs -p librdmacm -p verbs-check
	@$(SUDO) target/release/transhume demo $(DEMO_FLAGS)

demo-vm: setup-demo ## Move a virtual machine with its programs, and measure each move (under 6 minutes)
	@scripts/setup.sh guest
	@cargo build --locked --release -p transhume -p libibverbs -p librdmacm -p verbs-check -p guest -p probe
	@$(SUDO) target/release/transhume demo --vm "$$($(SUDO) scripts/guest-image.sh)" $(DEMO_FLAGS)

bench-verbs: setup build ## Compare the user-space device with UCX and libfabric, on one host and between two
	@$(SUDO) target/release/bench-verbs $(BENCH_FLAGS)

bench-move: setup build ## Measure the blackout of moves against plain CRIU, and of containers against runc
	@$(SUDO) target/release/bench-move $(BENCH_FLAGS)

bench-drain: setup build ## Measure the blackouts of drains and groups against single moves (some 2 minutes)
	@$(SUDO) target/release/bench-drain $(BENCH_FLAGS)

bench-mpi: setup build ## Run HPC Challenge in containers, with and without moves (some 5 minutes)
	@$(SUDO) target/release/bench-mpi $(BENCH_FLAGS)

bench-net: build ## Compare the overlay with wireguard-go, Nebula, VXLAN, OpenVPN, tinc, n2n and socat (some 9 minutes)
	@scripts/setup.sh bench-net
	@$(SUDO) target/release/bench-net $(BENCH_FLAGS)

bench-vm: setup build ## Compare moves of a virtual machine with plain QEMU (some 2 minutes)
	@$(SUDO) target/release/bench-vm $(BENCH_FLAGS)

bench-plan: setup-demo ## Measure the planner's search on generated clusters, and on public problems: BENCH_FLAGS='--instances DIR'
	@cargo build --locked --release -p bench --bin bench-plan
	@target/release/bench-plan $(BENCH_FLAGS)

bench-telemetry: setup build ## Measure the cost of telemetry for programs, the overlay and a node (some 5 minutes)
	@$(SUDO) target/release/bench-telemetry $(BENCH_FLAGS)

sim-plan: setup-demo ## Simulate 30 hours of 1,000 hosts under `plan --auto`, and a drain of 100 of them: SIM_FLAGS='--loads steady --hours 6'
	@cargo build --locked --release -p plan-sim
	@target/release/plan-sim $(SIM_FLAGS)

guest-image: ## Build the guest for tests of virtual machines, and save its running state (under 2 minutes)
	@scripts/setup.sh guest
	@$(SUDO) scripts/guest-image.sh saved

soak: setup-demo ## Simulate moves under faults for SECONDS=60, or all small cases: SECONDS=exhaustive
	@cargo run --locked --release -p moves --features sim --bin soak -- $(or $(SECONDS),60)

soak-vm: setup ## Kill each part of a lab in each phase of a virtual machine's move, and move one under services (some 40 minutes)
	@scripts/setup.sh guest
	@cargo build --locked --workspace
	@$(SUDO) target/debug/soak-vm $(or $(PART),all) $(CELLS)

soak-vm-mpi: setup build ## Run HPC Challenge on two virtual machines and two containers while they move (some 4 minutes)
	@$(SUDO) target/release/soak-vm-mpi

fuzz: setup ## Fuzz all parsers of untrusted input, SECONDS=60 per target, or only TARGET=name
	@scripts/fuzz.sh run $(or $(SECONDS),60) $(TARGET)

lint: setup-demo ## Check formatting and lints only
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

man: build ## Write manual pages and shell completions to target/share
	@mkdir -p target/share/man/man1 target/share/completions
	@target/release/transhume man --dir target/share/man/man1
	@for shell in bash zsh fish; do \
	    target/release/transhume completions $$shell >target/share/completions/transhume.$$shell; done
	@echo 'target/share: manual pages and completions'

clean: ## Remove build outputs, and the labs `demo` and `lab`
	@if [ -x target/release/transhume ]; then \
	    for lab in demo lab; do $(SUDO) target/release/transhume lab down --lab $$lab; done; fi
	@rm -rf target
