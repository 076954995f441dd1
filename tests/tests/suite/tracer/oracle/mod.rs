//! Our tracer against the kernel's own: the same sessions with both, and their answers compared.

mod compared;
mod faults;
mod generated;
mod kernel;
mod ours;
mod parts;
mod session;
mod shown;

use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestKernel, cases};

use compared::Comparison;

pub(crate) const CASES: &[Case] = cases![
    the_kernels_own_tracer_gives_the_same_answers needs [Kvm, Apt],
];

fn the_kernels_own_tracer_gives_the_same_answers() {
    let sessions = generated::all();
    let theirs = kernel::answers(&sessions);
    let guest = TestKernel::Linux6_12.restored(1);
    let mut comparison = Comparison::default();
    for (session, theirs) in sessions.iter().zip(theirs) {
        comparison.add(session, theirs, &ours::answers(&guest, session));
    }
    guest.assert_unharmed();
    comparison.judge();
}
