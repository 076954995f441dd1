# exoprobe: `make demo` and `make test` install, build and run everything from a fresh clone.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# One build of all programs serves the tests here and in the lab: static, with the features of the whole workspace.
TARGET := x86_64-unknown-linux-gnu
STATIC := env CARGO_BUILD_TARGET=$(TARGET) CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS=-Ctarget-feature=+crt-static RUSTDOCFLAGS=-Ctarget-feature=+crt-static
PROGRAMS := target/$(TARGET)/debug
END_TO_END := $(STATIC) cargo test --locked --workspace --test integration --
LAB := $(PROGRAMS)/lab
TIMED := scripts/timed.sh
QUIETLY := $(MAKE) --no-print-directory
.PHONY: help programs kvm setup setup-lab guest guest-events guest-6.12 debian-image debian build demo check test begin unit-tests host-tests lab-tests lab-parts lab lab-smp lab-amd lab-stock lab-kernels stress loaded stress-lab lint setup-miri miri oracle fuzz hostile release bench bench-disk bench-stops counts openapi clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9.-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## install missing Debian packages (apt when root, else print the line)
	@$(TIMED) "Debian packages" scripts/setup.sh

setup-lab:  ## install what the lab and all guests of the tests need too
	@$(TIMED) "Debian packages of the lab" scripts/setup.sh --guest tiny-6.12 --lab --bpftrace

setup-miri:
	@$(TIMED) "Rust for Miri" scripts/miri.sh setup

guest: setup  ## build the tiny guest's kernel and initramfs (cached)
	@$(TIMED) "guest: tiny" guest/build.sh

guest-events: setup  ## build the kernel with kprobe events of its own that benches compare with (cached)
	@$(TIMED) "guest: kprobe-events" guest/build.sh kprobe-events

guest-6.12: setup  ## build a guest of Linux 6.12 with modules, ORC tables, BTF and KASLR (cached)
	@$(TIMED) "Debian packages of Linux 6.12" scripts/setup.sh --guest tiny-6.12
	@$(TIMED) "guest: tiny-6.12" guest/build.sh tiny-6.12

debian-image: setup  ## build a disk image of Debian 12, into guest/out/debian (cached)
	@$(TIMED) "Debian packages of the disk image" scripts/setup.sh --debian
	@$(TIMED) "guest: Debian" scripts/debian-image.sh >target/debian-image
	@mkdir -p guest/out && ln -sfn "$$(cat target/debian-image)" guest/out/debian

debian: debian-image programs  ## boot Debian 12 to its login prompt, probe programs in it (without hardware KVM: in the lab)
	@if $(PROGRAMS)/exoprobe doctor 2>/dev/null | grep -q '^Virtualization  by hardware'; then \
	    $(END_TO_END) debian::; \
	else \
	    scripts/setup.sh --lab && $(LAB) run debian $(LAB_ARGS); \
	fi

kvm:
	@scripts/kvm.sh

build: setup  ## build the release binary
	cargo build --release --locked --bin exoprobe

demo: kvm guest build  ## boot the guest, probe getpid over HTTP, compare hits with calls
	@scripts/demo.sh

lint: setup  ## formatting, lints, circles of files and long comments, as CI wants them
	cargo fmt --all --check
	cd guest/init && cargo fmt --check
	cd tests/fuzz/libfuzzer && cargo fmt --check
	$(TIMED) "lints: dependencies" scripts/deny.sh
	$(TIMED) "lints: clippy" $(STATIC) cargo clippy --locked --workspace --all-targets -- -D warnings
	$(TIMED) "lints: clippy of the end-to-end tests" $(STATIC) cargo clippy --locked --workspace --test integration -- -D warnings
	$(TIMED) "lints: documentation" $(STATIC) RUSTDOCFLAGS="-Dwarnings -Ctarget-feature=+crt-static" cargo doc --quiet --no-deps --locked --workspace --lib --bins --examples
	$(STATIC) cargo build --quiet --locked --workspace --bin circles
	$(PROGRAMS)/circles
	@scripts/comment-width.sh
	cd guest/init && cargo clippy --locked --release -- -D warnings

programs:  ## build all programs of the tests
	@$(TIMED) "build: tests of the parts" $(STATIC) cargo build --locked --workspace --all-targets
	@$(TIMED) "build: tests of the whole" $(STATIC) cargo build --locked --workspace --test integration

# Built apart from the programs of `make test`, with notes for the next build: a change of one file is there in a seventh of the time.
CHECKED := CARGO_INCREMENTAL=1 $(STATIC) cargo --config tests/check.toml test --locked --workspace
check: guest  ## before each commit: lints, unit tests, and the suite `hits` on this host
	CARGO_INCREMENTAL=1 $(QUIETLY) lint
	$(CHECKED) --lib --bins
	$(CHECKED) --test integration -- hits:: --test-threads 2

ifdef SUITE
test: guest guest-6.12 setup-lab programs
	$(END_TO_END) $(SUITE):: --test-threads 2
	$(LAB) run intel --test $(SUITE):: --once
else
# The steps of `make test` are kept here, with their times.
STEPS := $(CURDIR)/target/tests/steps
test: export EXOPROBE_STEPS := $(STEPS)
test: begin setup-lab  ## lints and every test, here and in the lab (SUITE=hits: one suite of them)
	@rm -f target/tests/*.jsonl; status=0; \
	$(QUIETLY) --jobs --keep-going $(LANES) || status=1; \
	if ! compgen -G 'target/tests/*.jsonl' >/dev/null; then echo 'make test: failed before its tests began: see above' >&2; exit 1; fi; \
	echo '== where the time went'; $(LAB) times $(STEPS) $(REPORTS) || status=1; \
	echo '== what ran where'; $(LAB) places $(REPORTS) || status=1; \
	exit $$status
endif

# Lanes, each begun when those are done that it needs: a lane that waits (for the last file of a build, for a guest)
# leaves its CPU to the others. Within a lane targets are made one by one, without the jobs of the lanes.
LANES := lane-units lane-miri lane-host lane-lab
.PHONY: $(LANES) lane-programs lane-guest lane-parts lane-rust
ONE_BY_ONE := @MAKEFLAGS=
lane-programs:
	$(ONE_BY_ONE) $(QUIETLY) lint programs
lane-guest:
	$(ONE_BY_ONE) nice $(QUIETLY) guest
lane-parts: lane-guest
	$(ONE_BY_ONE) nice $(QUIETLY) guest-6.12 lab-parts
lane-rust:
	$(ONE_BY_ONE) nice $(QUIETLY) setup-miri
lane-units: lane-programs lane-guest
	$(ONE_BY_ONE) $(QUIETLY) unit-tests
lane-miri: lane-programs lane-rust
	$(ONE_BY_ONE) $(QUIETLY) miri
lane-host: lane-programs lane-parts
	$(ONE_BY_ONE) $(QUIETLY) host-tests
lane-lab: lane-programs lane-parts
	$(ONE_BY_ONE) $(QUIETLY) lab-tests

unit-tests:
	$(TIMED) "unit tests" $(STATIC) cargo test --locked --workspace
	cd guest/init && cargo test --locked --lib

# What the lab has: cases with one vCPU, and where KVM emulates guests' kernels those that take a boot of 8 to 20 s here, or as long.
IN_LAB := it runs in the lab
EMULATED := $(if $(wildcard /sys/module/kvm_pvm),;quick_kernel=$(IN_LAB))
host-tests:
	snapshots=$$(scripts/test-snapshots.sh) && EXOPROBE_TEST_SNAPSHOTS=$$snapshots \
	    EXOPROBE_TEST_LACKS='one_vcpu=$(IN_LAB)$(EMULATED)' \
	    EXOPROBE_TEST_REPORT=$(CURDIR)/target/tests/host.jsonl \
	    $(TIMED) "end to end: host" $(END_TO_END) --test-threads 2

# A machine of the lab has less than one CPU while the host's tests run: it may be silent for longer.
lab-tests:
	$(TIMED) "end to end: lab" $(LAB) run smp intel stock --once --silence 900

# All that the lab needs and `lab run` would make.
lab-parts: setup-lab
	@$(TIMED) "lab: its emulator" scripts/bochs.sh >/dev/null
	@$(TIMED) "lab: Debian's kernel" scripts/debian-kernel.sh linux-image-cloud-amd64 >/dev/null
	@$(TIMED) "lab: its kernel" scripts/kernel.sh lab-host linux-source-6.1 tests/lab/host-kernel.config >/dev/null

begin:
	@scripts/kvm.sh || true
	@mkdir -p target/tests && rm -f $(STEPS)

# The records of the places where tests ran.
REPORTS := target/tests/{host,lab-intel,lab-smp,lab-stock}.jsonl

lab: guest guest-events guest-6.12 setup-lab programs  ## the tests on a real kvm_intel, in Bochs (LAB_ARGS='--test hits::')
	$(LAB) run intel --release $(LAB_ARGS)

lab-smp: guest guest-6.12 setup-lab programs  ## changes under load, on a kvm_intel with two CPUs
	$(LAB) run smp $(LAB_ARGS)

lab-amd: guest guest-events guest-6.12 setup-lab programs  ## the same on kvm_amd, as far as Bochs goes
	$(LAB) run amd $(LAB_ARGS)

lab-stock: guest guest-6.12 setup-lab debian-image programs  ## Debian's cloud kernel, and all of Debian, as guests, on kvm_intel
	$(LAB) run stock debian $(LAB_ARGS)

lab-kernels: guest guest-6.12 setup-lab programs  ## each kernel of Debian 12 as the guest, and the table of docs/kernels.md
	$(LAB) run kernels $(LAB_ARGS); status=$$?; grep -ho '| [0-9]*\.[0-9]*\.[0-9].*|' target/lab/kernels-*/console.txt | sort -V; exit $$status

stress: guest programs  ## ten minutes of probes that come and go at random
	EXOPROBE_STRESS_SECONDS=600 $(END_TO_END) stress::

loaded:  ## `make test` TIMES (10) in a row, beside a busy loop on each CPU: 25 minutes each
	@scripts/loaded.sh $(or $(TIMES),10)

stress-lab: guest guest-6.12 setup-lab programs  ## the same in the lab, on two CPUs with a slow clock
	$(LAB) run smp --test stress:: --ips 50000000 --env EXOPROBE_STRESS_SECONDS=600 \
	    --silence 900 --limit 7200

miri:  ## memory shared with the guest under Miri (a part of `make test`; rustup installs what it needs)
	@$(TIMED) "Miri" scripts/miri.sh

oracle: guest-6.12 programs  ## ask Debian's kernels, in QEMU, what the suite oracle:: has no record of (ANEW=1: all), and record it
	EXOPROBE_ORACLE=$(if $(ANEW),anew,record) $(END_TO_END) oracle::

fuzz:  ## each fuzz target for SECONDS (60)
	@scripts/fuzz.sh $(or $(SECONDS),60)

hostile: guest programs  ## attack services for SECONDS (600): clients, guests' texts, snapshots, kills
	$(PROGRAMS)/hostile --seconds $(or $(SECONDS),600) $(HOSTILE_ARGS)

release: setup  ## the release archive of this commit, with an SBOM, into target/release-archive
	scripts/release.sh

bench: guest guest-events build  ## the figures of docs/benchmarks.md (BENCH='symbols' for a part)
	cargo bench --locked -p exoprobe-tests --bench speed -- $(BENCH)

bench-disk: guest guest-6.12 setup-lab programs  ## the cost of a request to a disk beside that of Debian's QEMU, in the lab
	$(LAB) run disk-speed --release $(LAB_ARGS)

bench-stops: guest setup-lab programs  ## how long 500 probes stop a guest, by its own clock, with 32 MiB to 16 GiB, in the lab
	$(LAB) run stops --release $(LAB_ARGS)

counts: guest guest-events build  ## exits and instructions of one hit, counted
	cargo bench --locked -p exoprobe-tests --bench counts

openapi: build  ## write docs/openapi.json anew
	target/release/exoprobe openapi > docs/openapi.json

clean:  ## remove what cargo built (the guest's cache stays)
	cargo clean
