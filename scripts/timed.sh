#!/usr/bin/env bash
# Runs a command and, if EXOPROBE_STEPS names a file, adds a line about it there: the step's name,
# its seconds, those that its processes had of CPUs, and its exit status, as JSON. `lab times` shows them.
#
#   scripts/timed.sh NAME COMMAND...
set -uo pipefail
name=${1:?give a name}
shift
if [[ -z ${EXOPROBE_STEPS:-} ]]; then exec "$@"; fi
# Seconds, then those of CPUs in user mode and in the kernel.
TIMEFORMAT='%3R %3U %3S'
exec {out}>&1 {err}>&2
spent=$({ time "$@" >&"$out" 2>&"$err" {out}>&- {err}>&-; } 2>&1)
status=$?
read -r seconds user system <<<"$spent"
cpu=$((10#${user/./} + 10#${system/./}))
mkdir -p "$(dirname "$EXOPROBE_STEPS")"
printf '{"step":"%s","seconds":%s,"cpu_seconds":%d.%03d,"status":%d}\n' \
    "$name" "$seconds" $((cpu / 1000)) $((cpu % 1000)) $status >>"$EXOPROBE_STEPS"
exit $status
