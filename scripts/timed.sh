#!/usr/bin/env bash
# Runs a command and, if EXOPROBE_STEPS names a file, adds a line about it there: the step's name,
# its seconds, and its exit status, as JSON. `lab times` shows them.
#
#   scripts/timed.sh NAME COMMAND...
set -uo pipefail
name=${1:?give a name}
shift
begun=$EPOCHREALTIME
"$@"
status=$?
if [[ -n ${EXOPROBE_STEPS:-} ]]; then
    microseconds=$((${EPOCHREALTIME/./} - ${begun/./}))
    mkdir -p "$(dirname "$EXOPROBE_STEPS")"
    printf '{"step":"%s","seconds":%d.%06d,"status":%d}\n' \
        "$name" $((microseconds / 1000000)) $((microseconds % 1000000)) $status >>"$EXOPROBE_STEPS"
fi
exit $status
