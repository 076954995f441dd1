#!/usr/bin/env bash
# Cargo's RUSTC_WRAPPER of scripts/fuzz.sh: our own crates are built with coverage. What they depend
# on is found by way of them, and with coverage takes several times as long to build.
set -euo pipefail
if [[ ${CARGO_PKG_NAME:-} == exoprobe* ]]; then
    read -ra coverage <<<"$EXOPROBE_FUZZ_COVERAGE"
    set -- "$@" "${coverage[@]}"
fi
exec "$@"
