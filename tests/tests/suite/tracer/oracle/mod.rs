//! Our tracer against the kernel's own: the same sessions with both, and their answers compared.

mod compared;
mod difference;
mod faults;
mod generated;
mod kernel;
mod listed;
mod ours;
mod parts;
mod records;
mod refusals;
mod session;
mod shown;

use std::sync::OnceLock;

use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestKernel, cases};

use compared::Comparison;
use kernel::Kernel;
use session::{Answers, Session};

pub(crate) const CASES: &[Case] = cases![
    the_kernels_own_tracer_gives_the_same_answers needs [Kvm, Apt],
    that_of_linux_6_1_gives_the_same_answers needs [Kvm, Apt],
];

fn the_kernels_own_tracer_gives_the_same_answers() {
    comparison(&kernel::LINUX_6_12).judge_6_12();
}

fn that_of_linux_6_1_gives_the_same_answers() {
    comparison(&kernel::LINUX_6_1).judge_6_1();
}

fn comparison(kernel: &Kernel) -> Comparison {
    let sessions = sessions();
    let theirs = kernel.answers(sessions);
    let mut comparison = Comparison::default();
    for ((session, theirs), ours) in sessions.iter().zip(theirs).zip(ours()) {
        comparison.add(session, theirs, ours);
    }
    comparison
}

fn sessions() -> &'static [Session] {
    static SESSIONS: OnceLock<Vec<Session>> = OnceLock::new();
    SESSIONS.get_or_init(generated::all)
}

/// Our answers, the same for each kernel: the tracer's language is not the guest's.
fn ours() -> &'static [Answers] {
    static OURS: OnceLock<Vec<Answers>> = OnceLock::new();
    OURS.get_or_init(|| {
        let guest = TestKernel::Linux6_12.restored(1);
        let answers = sessions().iter().map(|session| ours::answers(&guest, session)).collect();
        guest.assert_unharmed();
        answers
    })
}
