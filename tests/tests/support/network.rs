//! Network namespaces (network_namespaces(7)).

/// Runs a part of a test in a network namespace of its own, which is gone with its thread: the
/// harness gives its threads to other cases.
pub(crate) fn in_own_namespace(part: fn()) {
    let thread = std::thread::spawn(move || {
        // SAFETY: no memory is involved.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
        part();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}
