#!/usr/bin/env bash
# Runs the fuzz targets of tests/fuzz on their seeds and their corpus, as many at once as there are
# CPUs, and fails if one finds a fault. A stable compiler is enough: LLVM's coverage pass needs no
# sanitizer.
#
#   scripts/fuzz.sh SECONDS [TARGET...]      default: all targets, SECONDS each
set -euo pipefail
cd "$(dirname "$0")/../tests/fuzz"

seconds=${1:?give the seconds for each target}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "fuzz: '$seconds' is no number of seconds" >&2; exit 2; }
shift
all=(seeds/*)
all=("${all[@]#seeds/}")
targets=("$@")
[ $# -gt 0 ] || targets=("${all[@]}")
for target in "${targets[@]}"; do
    [[ -d seeds/$target ]] ||
        { echo "fuzz: unknown target '$target' (known: ${all[*]})" >&2; exit 2; }
done

triple=x86_64-unknown-linux-gnu
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
for kind in inline-8bit-counters pc-table trace-compares; do
    coverage+=" -Cllvm-args=-sanitizer-coverage-$kind"
done
CARGO_ENCODED_RUSTFLAGS=-Cdebug-assertions EXOPROBE_FUZZ_COVERAGE=$coverage \
    RUSTC_WRAPPER=$PWD/../../scripts/fuzz-rustc.sh \
    cargo build --quiet --locked --release --target "$triple" --manifest-path libfuzzer/Cargo.toml

# One target; its output is shown if it fails.
run() {
    local target=$1 log
    mkdir -p "corpus/$target" "artifacts/$target"
    log=artifacts/$target.log
    if EXOPROBE_FUZZ_TARGET=$target "$program" -max_total_time="$seconds" -max_len=16384 -timeout=25 \
        -rss_limit_mb=2048 -artifact_prefix="artifacts/$target/" \
        "corpus/$target" "seeds/$target" >"$log" 2>&1; then
        runs=$(sed -n 's/^Done \([0-9]*\) runs.*/\1/p' "$log")
        echo "fuzz: $target: ${runs:-0} runs, no fault"
    else
        tail -n 40 "$log" >&2
        echo "fuzz: $target: a fault; its input is in tests/fuzz/artifacts/$target/" >&2
        return 1
    fi
}
export -f run
program=libfuzzer/target/$triple/release/fuzz
export seconds program
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'run {}'
