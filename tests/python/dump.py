"""Prints as JSON how drgn reads a dump: dump.py CORE VMLINUX [SYMBOL...]

Numbers of tasks with their names, sorted; of each CPU its task, that task's functions, innermost first,
and where it is; the first 8 bytes at each symbol; the end of the kernel's log.
"""

import json
import sys

import drgn
from drgn.helpers.linux.cpumask import for_each_online_cpu
from drgn.helpers.linux.pid import for_each_task
from drgn.helpers.linux.printk import get_dmesg
from drgn.helpers.linux.sched import cpu_curr


def text(chars):
    return chars.string_().decode()


def cpu(program, number):
    task = cpu_curr(program, number)
    trace = program.stack_trace(task)
    return {
        "pid": task.pid.value_(),
        "functions": [frame.name for frame in trace],
        "pc": trace[0].pc,
        "registers": trace[0].registers(),
    }


def main(core, vmlinux, *symbols):
    program = drgn.Program()
    program.set_core_dump(core)
    program.load_debug_info([vmlinux])
    tasks = [(task.pid.value_(), text(task.comm)) for task in for_each_task(program)]
    found = {
        "release": text(program["init_uts_ns"].name.release),
        "jiffies": program["jiffies_64"].value_(),
        "tasks": sorted(tasks),
        "cpus": [cpu(program, number) for number in for_each_online_cpu(program)],
        "code": {name: program.read(program.symbol(name).address, 8).hex() for name in symbols},
        "log": get_dmesg(program)[-2000:].decode(),
    }
    print(json.dumps(found))


main(*sys.argv[1:])
