#!/usr/bin/env bash
# Fails, with the remedy, if this user cannot open the KVM device. Run before long builds, for those
# that need it.
#
#   scripts/kvm.sh [DEVICE]      default: /dev/kvm
set -uo pipefail
device=${1:-/dev/kvm}

if [[ ! -e $device ]]; then
    {
        echo "kvm: there is no $device: guests cannot run here"
        if grep -qwE 'vmx|svm' /proc/cpuinfo; then
            echo "kvm: load KVM: sudo modprobe kvm_intel (on AMD: kvm_amd)"
        else
            echo "kvm: enable virtualization in the firmware; in a virtual machine, enable nested virtualization on its host"
        fi
        echo "kvm: without it, \`make test\` runs its tests in the emulated lab only"
    } >&2
    exit 1
fi
if ! { : <>"$device"; } 2>/dev/null; then
    {
        echo "kvm: no right to open $device for reading and writing"
        echo "kvm: join its group, then log in again: sudo usermod -aG kvm $(id -un)"
    } >&2
    exit 1
fi
