//! Queries of a guest at any moment.

use exoprobe_tests::{TestGuest, host};

/// IA32_LSTAR: by then software-only KVM maps hidden memory for its own sake.
const MSR_LSTAR: u32 = 0xc000_0082;
/// Called by no one but the workload.
pub(crate) const QUIET: &str = "__x64_sys_getpid";

/// Asks all that can be asked of a guest; what it is not far enough for is an error.
pub(crate) fn ask(guest: &TestGuest) {
    let engine = &guest.engine;
    let _ = (engine.symbols(), engine.blacklist(), engine.processes(), engine.stack(0));
    let _ = (engine.modules(), engine.running_kernel(), engine.types());
    let mut bytes = [0; 64];
    if let Ok(at) = engine.address_of(QUIET) {
        let _ = (engine.read_memory(at, &mut bytes), engine.disassemble(at));
    }
    engine.patrol();
    engine.optimize();
}

/// That nothing was mapped for a question's sake.
pub(crate) fn assert_not_mapped(guest: &TestGuest) {
    let by_quirk = || {
        let faults = host().profile().software.is_some_and(|software| software.syscall_faults);
        // It is mapped first, and then the register is written: before, no engine answers.
        faults && guest.vm.msr(0, MSR_LSTAR).expect("a vCPU answers") != 0
    };
    assert!(guest.vm.hidden().base().is_none() || by_quirk(), "a question mapped hidden memory");
}
