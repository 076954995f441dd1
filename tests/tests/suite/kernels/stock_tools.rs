//! Tools of Debian's package bpftrace (0.17), unmodified, over a distribution's kernel: those of
//! functions that the tiny guests do not have.

use exoprobe::DrivenScript;
use exoprobe_tests::{TestGuest, guest_file};

use crate::support::histograms::sum;

/// Called at each request's start, unless the compiler has made it part of its callers, as in Linux
/// 6.12.
const STARTED: &str = "__blk_account_io_start";
/// Requests of the workload in [`run`]; its flush is not one that the kernel accounts.
const REQUESTS: u64 = 128;

/// Runs a tool while the guest writes to its disk and reads. Returns its output.
fn run(guest: &TestGuest, tool: &str) -> String {
    let script = start(guest, tool).unwrap_or_else(|error| panic!("{tool}: {error}"));
    assert_eq!(guest.work("diskwrite /dev/vda 64"), 64);
    assert_eq!(guest.work("diskread /dev/vda 64"), 64);
    let text = script.end();
    println!("{tool}:\n{text}");
    text
}

fn start(guest: &TestGuest, tool: &str) -> Result<DrivenScript, String> {
    let text = std::fs::read_to_string(guest_file(&format!("stock/tools/{tool}.bt"))).unwrap();
    DrivenScript::start(&guest.engine, &text)
}

/// Tools of the block layer show each request once.
pub(super) fn requests_have_rows(guest: &TestGuest) {
    let symbols = guest.engine.symbols().expect("symbols from its memory");
    if symbols.lookup_function(STARTED).is_err() {
        for tool in ["biolatency", "biosnoop", "biostacks"] {
            let error = start(guest, tool).err().expect("it has not their functions");
            assert!(error.contains(STARTED), "{tool}: {error}");
        }
        return;
    }
    let latency = run(guest, "biolatency");
    assert_eq!(sum(&latency), REQUESTS, "{latency}");
    let rows = run(guest, "biosnoop");
    let is_meant = |line: &&str| line.contains(" vda     init             1 ");
    assert_eq!(rows.lines().filter(is_meant).count() as u64, REQUESTS, "{rows}");
    let stacks = run(guest, "biostacks");
    assert_eq!(sum(&stacks), REQUESTS, "{stacks}");
    assert!(stacks.contains("    submit_bio"), "{stacks}");
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
