//! Linux 6.12, given by its bzImage alone: with KASLR, ORC tables, BTF and modules.

use std::sync::Arc;

use exoprobe_introspect::SymbolTable;
use exoprobe_probes::{Action, Selection, StatusFlag};
use exoprobe_tests::harness::Case;
use exoprobe_tests::{
    OPENS, TestGuest, TestKernel, assert_callers, assert_opened, assert_same_symbols, cases,
};
use exoprobe_tracer::Tracer;

use crate::support::frames::register;
use crate::support::pahole::assert_matches_pahole;
use crate::support::returned::{By, events_of, follow};

pub(crate) const CASES: &[Case] = cases![
    symbols_from_its_memory_are_those_of_the_build_moved_by_kaslr needs [Kvm, Repeat],
    probes_by_name_count_each_call_with_a_breakpoint_and_with_a_detour,
    its_types_are_in_its_memory needs [Kvm, DebugInfo],
    files_and_stacks_are_read_by_its_own_tables needs [Kvm, Repeat],
    a_modules_calls_of_the_kernel_are_counted_for_as_long_as_it_is_loaded,
    a_modules_function_is_counted_whenever_it_is_loaded needs [Kvm, QuickKernel],
];

const KERNEL: TestKernel = TestKernel::Linux6_12;
/// CONFIG_PHYSICAL_ALIGN: KASLR moves a kernel by so many bytes.
const STEP: i64 = 2 << 20;

fn symbols_from_its_memory_are_those_of_the_build_moved_by_kaslr() {
    let guest = KERNEL.restored(1);
    let found = guest.engine.symbols().unwrap();
    let map = SymbolTable::load(&KERNEL.file("System.map")).unwrap();
    let text = |table: &SymbolTable| table.lookup("_text").unwrap().address.0;
    let slide = text(&found).wrapping_sub(text(&map)).cast_signed();
    println!("KASLR moved it by {slide:#x}");
    // Nearly always it is somewhere else, and never between two of these places.
    assert_eq!(slide % STEP, 0);
    assert_same_symbols(&found, &map.with_slide(slide));
}

fn probes_by_name_count_each_call_with_a_breakpoint_and_with_a_detour() {
    let guest = KERNEL.restored(1);
    guest.assert_counts_by_name(100);
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

fn its_types_are_in_its_memory() {
    let guest = KERNEL.restored(1);
    let types = guest.engine.types().expect("CONFIG_DEBUG_INFO_BTF");
    println!("{} types, from its memory", types.len());
    assert_matches_pahole(&types, &KERNEL.file("pahole.txt"));
}

/// Its parameters by BTF, its callers by ORC tables: it has no frame pointers.
fn files_and_stacks_are_read_by_its_own_tables() {
    let guest = KERNEL.restored(1);
    guest.probe(OPENS);
    follow(&guest, "r:outer __x64_sys_openat", By::Trampoline);
    register(&guest, "p:traced do_sys_openat2", &[Action::Stack]);
    assert_eq!(guest.work("open /dev/null 5"), 5);
    assert_opened(&events_of(&guest, "opens"), 5);
    assert_callers(&events_of(&guest, "traced"), 5);
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

/// Unloads a module. A terminal that was closed lets go of its module a little later (tty_io.c,
/// release_one_tty): until then the answer is EAGAIN.
fn unload(guest: &TestGuest, module: &str) {
    const BUSY: &str = "error rmmod: delete_module: errno 11 (0 done)";
    let command = format!("rmmod {module}");
    guest.wait_until("the module is unloaded", |guest| {
        let answer = guest.answer_line(guest.send(&command), &command);
        assert!(answer == BUSY || answer == "done rmmod 1", "{answer}");
        answer != BUSY
    });
}

fn a_modules_calls_of_the_kernel_are_counted_for_as_long_as_it_is_loaded() {
    let guest = KERNEL.restored(1);
    guest.probe("p:load do_init_module");
    guest.probe("p:open tty_port_open");
    assert_eq!(guest.work("insmod test_module"), 1);
    assert_eq!(guest.work("insmod ttynull"), 1);
    // Each is one call of the module's ttynull_open, which calls the kernel's tty_port_open.
    assert_eq!(guest.work("open /dev/ttynull 20"), 20);
    assert_eq!((guest.hits("load"), guest.hits("open")), (2, 20));
    for module in ["ttynull", "test_module"] {
        unload(&guest, module);
    }
    for (command, error) in [
        ("rmmod ttynull", "error rmmod: delete_module: errno 2 (0 done)"),
        ("insmod nothing", "error insmod: openat: errno 2 (0 done)"),
    ] {
        let from = guest.send(command);
        assert_eq!(guest.answer_line(from, command), error);
    }
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

/// Lines have functions of modules as the kernel's own have them.
fn assert_trace_names_module(guest: &TestGuest) {
    let trace = Tracer::new(Arc::clone(&guest.engine), 1).read("trace").unwrap();
    let line = |event: &str| trace.lines().find(|line| line.contains(event)).unwrap();
    let [open, opened] = [": open: (", ": opened: ("].map(line);
    assert!(open.contains(": open: (ttynull_open+0x0/0x"), "{open}");
    assert!(open.ends_with(" [ttynull])"), "{open}");
    assert!(opened.ends_with(" <- ttynull_open)"), "{opened}");
}

fn a_modules_function_is_counted_whenever_it_is_loaded() {
    let guest = KERNEL.restored(1);
    guest.probe("p:init ttynull:ttynull_init");
    guest.probe("p:open ttynull:ttynull_open");
    guest.probe("r:opened ttynull:ttynull_open");
    guest.probe("p:exit ttynull:ttynull_exit");
    guest.probe("p:other test_module:no_such_function");
    let flags = |event: &str| guest.status(event).flags;
    for event in ["init", "open", "opened", "exit"] {
        assert_eq!(flags(event), [StatusFlag::Pending]);
        assert!(guest.status(event).reason.unwrap().contains("no module named \"ttynull\""));
    }
    let unknown = guest.check("p:bare ttynull_open").unwrap_err();
    assert_eq!(unknown.code(), "ENOENT");
    let loaded = |names: &[&str]| {
        let found = guest.engine.modules().unwrap();
        assert_eq!(found.iter().map(|module| &*module.name).collect::<Vec<_>>(), names);
        found
    };
    for round in 1..=3 {
        loaded(&[]);
        assert_eq!(guest.work("insmod ttynull"), 1);
        assert_eq!((guest.hits("init"), flags("open")), (round, vec![]), "before its first call");
        assert_eq!(guest.work("open /dev/ttynull 20"), 20);
        assert_eq!((guest.hits("open"), guest.hits("opened")), (20 * round, 20 * round));
        if round == 1 {
            assert_trace_names_module(&guest);
        }
        let of_module = loaded(&["ttynull"]).remove(0);
        assert!(of_module.probes.contains(&"kprobes/open".to_owned()), "{of_module:?}");
        // The work that frees its init text comes a little later.
        guest.wait_until("its init text is gone", |g| g.status("init").flags == [StatusFlag::Gone]);
        unload(&guest, "ttynull");
        assert_eq!(guest.hits("exit"), round);
        for event in ["open", "opened", "exit"] {
            assert_eq!(flags(event), [StatusFlag::Gone], "{event}");
        }
    }
    assert_eq!(guest.work("insmod test_module"), 1);
    guest.engine.patrol();
    assert!(guest.status("other").reason.unwrap().contains("no symbol named"));
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}
