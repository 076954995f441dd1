//! A model of the return watch: vCPUs begin and end calls of one probe at the same time.

use std::sync::Arc;

use exoprobe_guest::{GuestTime, Gva};
use shuttle::thread;

use super::registered::{KretprobeInstance, Watch, unwatch, unwatch_stack, watch};
use crate::shuttled::{Model, check};

const STACK: u64 = 16 << 10;
/// Fewer than the calls that are under way, so that vCPUs compete for each.
const MAXACTIVE: usize = 3;

/// An instance of the call that returns to `ret_addr`.
pub(crate) fn instance(ret_addr: Gva) -> Box<KretprobeInstance> {
    let mut instance = Box::new(KretprobeInstance::new(0));
    instance.begin(ret_addr, GuestTime(0));
    instance
}

#[test]
fn a_watched_return_finds_the_instance_of_its_own_call() {
    check(3_000, || {
        let watched: Vec<Watch<Model>> = (0..MAXACTIVE).map(|_| Watch::default()).collect();
        let watched = Arc::new(watched);
        let vcpus = (1..=2).map(|vcpu| {
            let watched = Arc::clone(&watched);
            thread::spawn(move || {
                let keys = [Gva(vcpu * STACK), Gva(vcpu * STACK + 8)];
                for round in 0..2 {
                    let begun = keys.map(|key| watch(&watched, key, instance(key)).is_ok());
                    if vcpu == 2 && round == 0 {
                        // Its task ends within the calls.
                        unwatch_stack(&watched, keys[0]);
                        assert!(keys.iter().all(|key| unwatch(&watched, *key).is_none()));
                        continue;
                    }
                    for (key, begun) in keys.into_iter().zip(begun).rev() {
                        let found = unwatch(&watched, key).map(|it| it.instance.ret_addr);
                        assert_eq!(found, begun.then_some(key));
                    }
                }
            })
        });
        let vcpus: Vec<_> = vcpus.collect();
        vcpus.into_iter().for_each(|vcpu| vcpu.join().unwrap());
        // None was lost: all can be had again.
        let calls = (0..MAXACTIVE as u64).map(|call| Gva(8 * STACK + call * 8));
        calls.for_each(|key| assert!(watch(&watched, key, instance(key)).is_ok()));
        assert!(watch(&watched, Gva(9 * STACK), instance(Gva(0))).is_err());
    });
}
