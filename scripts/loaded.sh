#!/usr/bin/env bash
# Runs `make test` several times in a row, beside a busy loop on each CPU, and ends at the first run
# that fails. Shows a line for each run; its output is in target/tests/loaded-N.log.
#
#   scripts/loaded.sh TIMES
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
times=${1:?give a number of runs}
[[ $times =~ ^[1-9][0-9]*$ ]] || { echo "loaded: \`$times\` is no number of runs" >&2; exit 2; }

running=()
trap 'kill "${running[@]}" 2>/dev/null' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
for ((cpu = 0; cpu < $(nproc); cpu++)); do
    bash -c 'while :; do :; done' &
    running+=($!)
done
mkdir -p target/tests
for ((run = 1; run <= times; run++)); do
    log=target/tests/loaded-$run.log
    begun=$SECONDS
    make test >"$log" 2>&1 &
    tests=$!
    running+=("$tests")
    if wait "$tests"; then
        echo "run $run of $times: passed, $((SECONDS - begun)) s"
    else
        tail -n 40 "$log" >&2
        echo "run $run of $times: FAILED, $((SECONDS - begun)) s: see $log"
        exit 1
    fi
done
