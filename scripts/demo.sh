#!/usr/bin/env bash
# Boots the tiny guest, probes getpid over HTTP, waits for the probe to be optimized, has the guest call it 1,000
# times, and compares; none of the hits may leave the guest.
set -euo pipefail
cd "$(dirname "$0")/.."

calls=1000
source scripts/guest.bash
boot

echo "== POST /v1/probes: p:getpid __x64_sys_getpid"
http POST /v1/probes --header 'content-type: text/plain' --data 'p:getpid __x64_sys_getpid'
echo
echo "== waiting for the optimizer"
until http GET /v1/kprobes/list | grep -F '[OPTIMIZED]'; do
    [ "$((SECONDS))" -lt 600 ] || fail "not optimized after 10 minutes"
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
[ "$exits" = 0 ] || fail "optimized hits left the guest"
[ "$hits" = "$counted" ] && [ "$counted" = "$calls" ] || fail "they differ"
echo "demo: equal"
