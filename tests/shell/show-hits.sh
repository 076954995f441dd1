#!/usr/bin/env bash
# Shows the hits of a probe until it is interrupted, as users' scripts over the kernel's tracer do it: all by the files
# of its folder.
#
#   TRACING=FOLDER show-hits.sh [-f FILTER] [-s] p|r SYMBOL[+OFFSET] [ARGUMENT...]
#
# FILTER is the event's; -s shows back-traces, too. Ends with 0 on an interrupt, after it has removed its probe.
set -euo pipefail

tracing=${TRACING:-/sys/kernel/tracing}
fail() { echo "show-hits: $*" >&2; exit 1; }

filter=
stacks=
while getopts f:s option; do
    case $option in
    f) filter=$OPTARG ;;
    s) stacks=1 ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
(($# >= 2)) || fail "give p or r, and a place"
kind=$1
shift

cd "$tracing" 2>/dev/null || fail "no tracer at $tracing"
[ -w kprobe_events ] || fail "the kernel has no kprobe events"
name=show_hits_$$
events=events/kprobes/$name
reader=

# Each step is undone, whichever of them was the last.
clean_up() {
    trap '' INT TERM
    if [ -n "$reader" ]; then
        kill "$reader" 2>/dev/null || true
        wait "$reader" 2>/dev/null || true
    fi
    if [ -d "$events" ]; then
        echo 0 >"$events/enable"
        if [ -n "$stacks" ]; then
            echo '!stacktrace' >"$events/trigger" || true
        fi
        echo "-:kprobes/$name" >>kprobe_events
    fi
}
trap clean_up EXIT
trap 'exit 0' INT TERM

if ! echo "$kind:kprobes/$name $*" >>kprobe_events 2>/dev/null; then
    tail -n 3 error_log >&2
    fail "the probe is refused"
fi
if [ -n "$filter" ] && ! echo "$filter" >"$events/filter" 2>/dev/null; then
    sed 's/^/  /' "$events/filter" >&2
    fail "the filter is refused"
fi
if [ -n "$stacks" ]; then
    echo "stacktrace${filter:+ if $filter}" >"$events/trigger"
fi
echo >trace
echo 1 >"$events/enable"
echo "show-hits: $(sed -n 's/^ID: //p' "$events/format") is enabled, $(cat tracing_on)" >&2
cat trace_pipe &
reader=$!
wait "$reader"
