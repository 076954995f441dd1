#!/usr/bin/env bash
# Runs a command that finds a guest's tracer where this host's own would be, for trace-cmd, perf and other programs that
# look only there.
#
#   scripts/guest-tracefs.sh [--kallsyms FILE] DIR COMMAND [ARGUMENT...]
#
# DIR is where `exoprobe mount` has the guest's files. FILE names the guest's functions, as its /proc/kallsyms or its
# System.map does. Needs root. The command has mounts of its own: the host's files stay as they are for all others.
set -euo pipefail

usage="usage: guest-tracefs.sh [--kallsyms FILE] DIR COMMAND [ARGUMENT...]"
if [ "${1-}" != --inside ]; then
    exec unshare --mount "$(readlink -f "${BASH_SOURCE[0]}")" --inside "$@"
fi
shift
kallsyms=
if [ "${1-}" = --kallsyms ]; then
    kallsyms=${2:?$usage}
    shift 2
fi
dir=${1:?$usage}
shift
: "${1:?$usage}"
cpus=("$dir"/per_cpu/cpu*)
if [ ! -e "${cpus[0]}" ]; then
    echo "guest-tracefs.sh: $dir is not where a guest's tracer is mounted; try: exoprobe mount --background $dir" >&2
    exit 1
fi

# The library believes in a folder of this name only where a tracefs is mounted; below the guest's.
tracing=/sys/kernel/tracing
if ! grep -q " $tracing tracefs " /proc/self/mounts; then
    mount -t tracefs nodev $tracing
fi
files=$(mktemp -d)
trap 'rm -rf "$files"' EXIT
# trace-cmd writes to this switch of the host's, and reads one file for each CPU.
echo 1 >"$files/ftrace_enabled"
echo "0-$((${#cpus[@]} - 1))" >"$files/possible"
# Without names, addresses stay numbers: those of the host would be wrong, and so would its modules be.
: >"$files/kallsyms"
: >"$files/modules"
# perf compares the notes with a vmlinux; without any, it takes the one that it is given.
: >"$files/notes"
if [ -n "$kallsyms" ]; then
    cp "$kallsyms" "$files/kallsyms"
fi
mount --bind "$files/ftrace_enabled" /proc/sys/kernel/ftrace_enabled
mount --bind "$files/possible" /sys/devices/system/cpu/possible
mount --bind "$files/kallsyms" /proc/kallsyms
mount --bind "$files/notes" /sys/kernel/notes
if [ -e /proc/modules ]; then
    mount --bind "$files/modules" /proc/modules
fi
mount --bind "$dir" $tracing
# perf looks for kprobes/blacklist in debugfs; the guest's is in this folder.
export DEBUGFS_PATH=$tracing
status=0
"$@" || status=$?
exit "$status"
