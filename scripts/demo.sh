#!/usr/bin/env bash
# Boots the tiny guest, probes getpid over HTTP, waits for the probe to be optimized, has the guest call it 1,000
# times, and compares; none of the hits may leave the guest.
set -euo pipefail
cd "$(dirname "$0")/.."

calls=1000
exoprobe=${CARGO_TARGET_DIR:-target}/release/exoprobe
dir=$(mktemp -d)
socket=$dir/exoprobe.sock
export EXOPROBE_SOCKET=$socket
service=

finish() {
    if [ -n "$service" ]; then
        kill "$service" 2>/dev/null || true
        wait "$service" 2>/dev/null || true
    fi
    rm -rf "$dir"
}
trap finish EXIT

# http METHOD PATH [curl's options]
http() {
    local method=$1 path=$2
    shift 2
    curl --silent --show-error --fail-with-body --unix-socket "$socket" \
        --request "$method" "http://exoprobe$path" "$@"
}

echo "== booting the tiny guest (software-only KVM: about 15 s)"
"$exoprobe" run --kernel guest/out/vmlinux --initramfs guest/out/initramfs.cpio \
    --cmdline "$(cat guest/cmdline)" --memory 32 --socket "$socket" &
service=$!
for _ in $(seq 600); do
    [ -S "$socket" ] && break
    kill -0 "$service" 2>/dev/null || { echo "demo: exoprobe run ended" >&2; exit 1; }
    sleep 0.1
done
# The workload writes `ready` to its port once it takes commands.
until http GET /v1/vm/serial/1 | grep -q '^ready'; do
    kill -0 "$service" 2>/dev/null || { echo "demo: exoprobe run ended" >&2; exit 1; }
    [ "$((SECONDS))" -lt 600 ] || { echo "demo: no prompt after 10 minutes" >&2; exit 1; }
    sleep 0.2
done

echo "== POST /v1/probes: p:getpid __x64_sys_getpid"
http POST /v1/probes --header 'content-type: text/plain' --data 'p:getpid __x64_sys_getpid'
echo
echo "== waiting for the optimizer"
until http GET /v1/kprobes/list | grep -F '[OPTIMIZED]'; do
    [ "$((SECONDS))" -lt 600 ] || { echo "demo: not optimized after 10 minutes" >&2; exit 1; }
    sleep 0.1
done
breakpoints() {
    http GET /v1/vm | python3 -c 'import json, sys; print(json.load(sys.stdin)["exits"]["breakpoint"])'
}
before=$(breakpoints)
echo "== the guest calls getpid $calls times"
answer=$("$exoprobe" vm send "getpid $calls")
echo "$answer"
counted=${answer##* }
exits=$(($(breakpoints) - before))

echo "== GET /v1/probes"
list=$(http GET /v1/probes)
echo "$list" | python3 -m json.tool
echo "== GET /v1/kprobes/list"
http GET /v1/kprobes/list
echo "== GET /v1/events (the first 5)"
http GET '/v1/events?limit=5'

hits=$(echo "$list" | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["hits"])')
echo "== hits: $hits; the guest's own count: $counted; exits for them: $exits"
[ "$exits" = 0 ] || { echo "demo: optimized hits left the guest" >&2; exit 1; }
[ "$hits" = "$counted" ] && [ "$counted" = "$calls" ] || { echo "demo: they differ" >&2; exit 1; }
echo "demo: equal"
