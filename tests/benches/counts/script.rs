//! A probe as a script in the bpftrace language arms it: what its action reads is recorded, and a
//! consumer takes the records.

use std::sync::Arc;

use exoprobe_probes::definition::{ValueType, Width};
use exoprobe_probes::{
    Batch, Consumer, Fetch, FetchArg, HitConsumer, Kprobe, MemoryAtHit, NewProbe, ProbeDefinition,
    RecordedHit,
};
use exoprobe_tests::TestGuest;

/// Bytes of `pid` in a task, which `tgid` follows: the script's `pid`.
const PID_BYTES: u32 = 4;

/// Takes hits, and drops them.
struct Dropped;

impl HitConsumer for Dropped {
    fn take(&self, _: usize, _: RecordedHit) {}

    fn take_at_hit(&self, _: usize, _: RecordedHit, _: &mut dyn MemoryAtHit) -> Option<u64> {
        None
    }
}

/// Registers the probe of `kprobe:F { @ = count(); }`; if the definition reads a register, that of
/// `kprobe:F { @[pid] = hist(arg2); }`.
pub(crate) fn register(guest: &TestGuest, mut definition: ProbeDefinition) {
    if !definition.args.is_empty() {
        let layout = guest.engine.task_layout().expect("the kernel has tasks");
        let offset = i64::from(layout.pid + PID_BYTES);
        let body = Fetch::Deref { offset, base: Box::new(Fetch::CurrentTask), user: false };
        let kind = Some(ValueType::Unsigned(Width::Double));
        definition.args.push(FetchArg { name: Some("pid".to_owned()), body, kind, count: None });
    }
    let consumer =
        Some(Consumer { to: Arc::new(Dropped), probe: 0, at_hit: false, user_stack: false });
    let probe = Kprobe { consumer, ..Kprobe::from(definition) };
    guest
        .engine
        .register(Batch::from(vec![NewProbe::from(probe)]))
        .unwrap_or_else(|error| panic!("{error}"));
}
