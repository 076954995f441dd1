//! Tools of Debian's package bpftrace (0.17), unmodified, over a distribution's kernel: those of
//! functions that the tiny guests do not have.

use exoprobe::DrivenScript;
use exoprobe_tests::TestGuest;

fn start(guest: &TestGuest, tool: &str) -> Result<DrivenScript, String> {
    let text = std::fs::read_to_string(format!("/usr/sbin/{tool}.bt")).unwrap();
    DrivenScript::start(&guest.engine, &text)
}

/// Linux has the functions of some tools inlined; bpftrace cannot run these either.
pub(super) fn functions_that_are_inlined_are_named(guest: &TestGuest) {
    for tool in ["biolatency", "biosnoop", "biostacks"] {
        let error = start(guest, tool).err().expect("it has not their functions");
        assert!(error.contains("__blk_account_io_start"), "{tool}: {error}");
    }
}

/// Tools of functions in modules and of swap run to their end; nothing calls these functions here.
pub(super) fn tools_of_modules_run(guest: &TestGuest) {
    for (tool, functions) in [("mdflush", 1), ("swapin", 1), ("xfsdist", 8)] {
        match start(guest, tool) {
            Ok(script) => {
                assert_eq!(guest.engine.list().len(), functions, "{tool}");
                println!("{tool}:\n{}", script.end());
            }
            // Linux has it no longer.
            Err(error) => assert!(tool == "swapin" && error.contains("swap_readpage"), "{error}"),
        }
    }
    assert!(guest.engine.list().is_empty(), "a tool leaves nothing");
}
