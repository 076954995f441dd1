#!/usr/bin/env bash
# Runs commands at once, and waits for all of them. Fails if one fails. When it is ended, it ends those that run.
#
#   scripts/side-by-side.sh COMMAND...      each COMMAND is one argument, for the shell
set -uo pipefail

running=()
end() {
    for pid in "${running[@]}"; do kill -- "-$pid" 2>/dev/null; done
}
trap 'end; exit 130' INT
trap 'end; exit 143' TERM

# Each command leads a group of processes, so that all of it can be ended.
set -m
for command in "$@"; do
    bash -c "$command" </dev/null &
    running+=($!)
done
status=0
for pid in "${running[@]}"; do
    wait "$pid" || status=1
done
exit $status
