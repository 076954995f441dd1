//! The regular work in one call.

use super::*;
use crate::Selection;

#[test]
fn a_tick_drains_and_patrols_and_comes_sooner_while_there_are_probes() {
    let fake = Fake::booted();
    let idle = fake.engine.tick();
    fake.register("p:far far_off");
    let busy = fake.engine.tick();
    assert!(busy < idle, "{busy:?} {idle:?}");
    assert_eq!(fake.run(FAR_OFF), 1);
    let _ = fake.engine.tick();
    assert_eq!(fake.engine.events().read(1, 10).events.len(), 1);
    fake.write(FAR_OFF, &[0x0f, 0x0b]);
    // Not at each tick: a patrol is due ten times a second.
    while fake.flags("far").is_empty() {
        std::thread::sleep(fake.engine.tick());
    }
    assert_eq!(fake.flags("far"), [StatusFlag::Clobbered]);
    fake.engine.unregister(Selection::all()).unwrap();
    assert_eq!(fake.engine.tick(), idle);
}

#[test]
fn a_tick_comes_later_while_nothing_is_hit() {
    let fake = Fake::booted();
    fake.engine.allow_optimization(false);
    fake.register("p:far far_off");
    let busy = fake.engine.tick();
    let quiet = (0..100).map(|_| fake.engine.tick()).max().unwrap();
    assert!(quiet > busy, "{quiet:?} {busy:?}");
    assert_eq!(fake.run(FAR_OFF), 1);
    assert_eq!(fake.engine.tick(), busy);
}
