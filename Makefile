# exoprobe: `make demo` and `make test` install, build and run everything from a fresh clone.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# Folders that still have circles of files.
CIRCLES_NOT_YET := $(addprefix --not-yet ,probes/src/engine)
LAB := cargo run --quiet --locked -p exoprobe-lab --
.PHONY: help setup setup-lab guest guest-events guest-6.12 build demo test end-to-end lab lab-smp lab-amd lab-stock stress stress-lab lint miri bench counts openapi clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9.-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## install missing Debian packages (apt when root, else print the line)
	@scripts/setup.sh

setup-lab: setup
	@scripts/setup.sh --lab

guest: setup  ## build the tiny guest's kernel and initramfs (cached)
	@guest/build.sh

guest-events: setup  ## build the kernel with kprobe events of its own that benches compare with (cached)
	@guest/build.sh kprobe-events

guest-6.12: setup  ## build a guest of Linux 6.12 with modules, ORC tables, BTF and KASLR (cached)
	@scripts/setup.sh --guest tiny-6.12
	@guest/build.sh tiny-6.12

build: setup  ## build the release binary
	cargo build --release --locked

demo: guest build  ## boot the guest, probe getpid over HTTP, compare hits with calls
	@scripts/demo.sh

lint: setup  ## formatting, lints and circles of files, as CI wants them
	cargo fmt --all --check
	cd guest/init && cargo fmt --check
	cd tests/fuzz && cargo fmt --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo run --quiet --locked -p exoprobe-circles -- $(CIRCLES_NOT_YET)
	cd guest/init && cargo clippy --locked --release -- -D warnings
	cd tests/fuzz && cargo check --locked

test: guest guest-events guest-6.12 setup-lab lint  ## lints and every test, here and in the lab
	cargo build --locked --workspace
	cargo test --locked --workspace --exclude exoprobe-tests
	cd guest/init && cargo test --locked --lib
	cargo test --locked -p exoprobe-tests --lib
	@$(MAKE) --no-print-directory end-to-end

# All places, also when one of them fails; then what ran where.
end-to-end:
	@mkdir -p target/tests && rm -f target/tests/*.jsonl; status=0; \
	EXOPROBE_TEST_REPORT=$(CURDIR)/target/tests/host.jsonl \
	    cargo test --locked -p exoprobe-tests --test integration -- --test-threads 2 || status=1; \
	$(LAB) run intel smp stock --once || status=1; \
	echo '== what ran where'; \
	$(LAB) places target/tests/{host,lab-intel,lab-smp,lab-stock}.jsonl || status=1; \
	exit $$status

lab: guest guest-events guest-6.12 setup-lab  ## the tests on a real kvm_intel, in Bochs (LAB_ARGS='--test hits::')
	$(LAB) run intel $(LAB_ARGS)

lab-smp: guest guest-events guest-6.12 setup-lab  ## changes under load, on a kvm_intel with two CPUs
	$(LAB) run smp $(LAB_ARGS)

lab-amd: guest guest-events guest-6.12 setup-lab  ## the same on kvm_amd, as far as Bochs goes
	$(LAB) run amd $(LAB_ARGS)

lab-stock: guest guest-events guest-6.12 setup-lab  ## Debian's cloud kernel as the guest, on kvm_intel
	$(LAB) run stock $(LAB_ARGS)

stress: guest setup  ## ten minutes of probes that come and go at random
	EXOPROBE_STRESS_SECONDS=600 cargo test --locked -p exoprobe-tests --test integration -- stress::

stress-lab: guest guest-events guest-6.12 setup-lab  ## the same in the lab, on two CPUs with a slow clock
	$(LAB) run smp --test stress:: --ips 50000000 --env EXOPROBE_STRESS_SECONDS=600 \
	    --silence 900 --limit 7200

# What touches memory that the guest shares, and what needs no KVM and no file mapping.
miri:  ## memory shared with the guest under Miri (rustup component add --toolchain nightly miri rust-src)
	MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test --locked -p exoprobe-guest --lib -- memory:: hidden::
	MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test --locked -p exoprobe-probes --lib -- \
	    detour::ring:: detour::pool::

bench: guest guest-events build  ## the figures of docs/benchmarks.md (BENCH='symbols' for a part)
	cargo bench --locked -p exoprobe-tests --bench speed -- $(BENCH)

counts: guest guest-events build  ## exits and instructions of one hit, counted
	cargo bench --locked -p exoprobe-tests --bench counts

openapi: build  ## write docs/openapi.json anew
	target/release/exoprobe openapi > docs/openapi.json

clean:  ## remove what cargo built (the guest's cache stays)
	cargo clean
