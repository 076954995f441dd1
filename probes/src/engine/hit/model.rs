//! Models of the trampoline table: vCPUs begin and end calls at the same time.

use std::collections::HashSet;
use std::sync::Arc;

use exoprobe_guest::Gva;
use shuttle::sync::Mutex;
use shuttle::thread;

use super::frames::TrampolineTable;
use crate::engine::probe::model::instance;
use crate::shuttled::{Model, check};

const STACK: u64 = 16 << 10;
/// Fewer than the calls that are under way, so that vCPUs compete for each.
const TRAMPOLINES: usize = 2;

/// Begins a call with two instances; `None` if no trampoline is free.
fn call(table: &TrampolineTable<Model>, key: Gva) -> Option<usize> {
    let index = table.claim(key)?;
    table.add(index, instance(key));
    table.add(index, instance(Gva(key.0 + 1)));
    table.begin(index, key);
    Some(index)
}

#[test]
fn a_trampoline_belongs_to_one_call_at_a_time() {
    check(3_000, || {
        let table = Arc::new(TrampolineTable::<Model>::new(TRAMPOLINES));
        let owned = Arc::new(Mutex::new(HashSet::new()));
        let vcpus = (1..=3).map(|vcpu| {
            let (table, owned) = (Arc::clone(&table), Arc::clone(&owned));
            thread::spawn(move || {
                for round in 0..2 {
                    let key = Gva(vcpu * STACK + round * 8);
                    let Some(index) = call(&table, key) else { continue };
                    assert!(owned.lock().unwrap().insert(index), "{index} is of two calls");
                    assert!(table.is_at(index, key));
                    assert_eq!(table.return_address(index), Some(key));
                    owned.lock().unwrap().remove(&index);
                    if vcpu == 3 && round == 0 {
                        // Its task ends within the call.
                        table.end_stack(key);
                        assert!(!table.is_at(index, key));
                        continue;
                    }
                    let ended: Vec<_> = table.end(index).map(|it| it.instance.ret_addr).collect();
                    assert_eq!(ended, [Gva(key.0 + 1), key], "its own, the newest first");
                }
            })
        });
        let vcpus: Vec<_> = vcpus.collect();
        vcpus.into_iter().for_each(|vcpu| vcpu.join().unwrap());
        // None was lost: all can be claimed again.
        assert_eq!(table.active(), 0);
        assert!((0..TRAMPOLINES).all(|_| table.claim(Gva(1)).is_some()));
        assert_eq!(table.claim(Gva(1)), None);
    });
}

#[test]
fn a_guest_that_returns_twice_at_once_ends_its_call_once() {
    check(1_000, || {
        let table = Arc::new(TrampolineTable::<Model>::new(TRAMPOLINES));
        let index = call(&table, Gva(STACK)).unwrap();
        let returns = (0..2).map(|_| {
            let table = Arc::clone(&table);
            thread::spawn(move || table.end(index).count())
        });
        let returns: Vec<_> = returns.collect();
        let ended: usize = returns.into_iter().map(|it| it.join().unwrap()).sum();
        assert_eq!((ended, table.active()), (2, 0), "each instance once");
        let claimed = std::iter::from_fn(|| table.claim(Gva(1)));
        assert_eq!(claimed.count(), TRAMPOLINES, "it is free once");
    });
}
