//! Instructions that may fault on purpose: those that read and write user memory.

use std::collections::BTreeSet;

use exoprobe_guest::Gva;
use exoprobe_probes::{ProbeStatus, Selection};
use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestGuest, cases};

use crate::support::tables::table_of;

pub(crate) const CASES: &[Case] =
    cases![user_memory_is_read_and_written_by_probed_instructions(vcpus)];

/// Each name's function, where the kernel has it: some are chosen by the CPU, or named by the
/// version.
const FUNCTIONS: [&str; 19] = [
    "strncpy_from_user",
    "strnlen_user",
    "_copy_from_user",
    "_copy_to_user",
    "copy_user_generic_unrolled",
    "copy_user_generic_string",
    "copy_user_enhanced_fast_string",
    "rep_movs_alternative",
    "clear_user_original",
    "clear_user_rep_good",
    "clear_user_erms",
    "__get_user_1",
    "__get_user_4",
    "__get_user_8",
    "__get_user_nocheck_8",
    "__put_user_1",
    "__put_user_4",
    "__put_user_8",
    "__put_user_nocheck_8",
];

fn user_memory_is_read_and_written_by_probed_instructions(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let fixed_up: BTreeSet<Gva> =
        table_of(&guest, "__start___ex_table", "__stop___ex_table", 12).into_iter().collect();
    let text = guest.kernel_text();
    let all = guest.probe_each_instruction(FUNCTIONS);
    let taken: BTreeSet<Gva> = all.into_iter().map(|(_, at)| at).collect();
    assert!(taken.len() > 100, "only {} instructions were taken", taken.len());
    let may_fault = taken.intersection(&fixed_up).count();
    assert!(may_fault > 20, "only {may_fault} of {} may fault", taken.len());
    for round in 1..=3 {
        assert_eq!(guest.work("open /dev/null 20"), 20);
        assert_eq!(guest.work("badptr 20"), 20, "each call gives EFAULT");
        assert!(guest.hits("strncpy_from_user_0") >= round * 40);
        assert_eq!(guest.hits("__get_user_8_0"), round * 20, "settimeofday alone uses it");
        assert_eq!(guest.work("fork 2"), 2);
        assert_eq!(guest.work("mmap 10"), 10);
    }
    let faulting = |status: &&ProbeStatus| {
        status.hits > 0 && status.addr.is_some_and(|at| fixed_up.contains(&at))
    };
    let hit = guest.engine.list().iter().filter(faulting).count();
    assert!(hit > 5, "only {hit} of the instructions that may fault were hit");
    guest.work(&format!("par {} badptr 10", 2 * vcpus));
    guest.assert_unharmed();
    guest.engine.unregister(Selection::all()).unwrap();
    assert!(guest.kernel_text() == text, "not as it was");
    assert_eq!(guest.work("badptr 5"), 5);
    guest.assert_unharmed();
}
