//! Probes that are removed at the end of a scope.

use super::*;

#[test]
fn a_guard_removes_its_probes_and_no_others() {
    let fake = Fake::booted();
    fake.register("p:other work");
    {
        let both = ["p:far far_off", "r:returns far_off"].map(|line| parse_line(line).unwrap());
        let probes = fake.engine.register_scoped(both).unwrap();
        assert_eq!(probes.len(), 2);
        assert_eq!((fake.run(FAR_OFF), fake.hits("far")), (1, 1));
        // One that was removed meanwhile is passed over.
        fake.engine.unregister(&probes[1..]).unwrap();
    }
    assert_eq!(fake.engine.names(), [("kprobes".into(), "other".into())]);
    assert_eq!(fake.byte(FAR_OFF), BODY[0], "the guest's byte is back");
}

#[test]
fn a_guard_whose_text_was_changed_removes_its_probe_all_the_same() {
    let fake = Fake::booted();
    let probe = fake.engine.register_scoped(parse_line("p:far far_off").unwrap()).unwrap();
    fake.write(FAR_OFF, &[0x90]);
    drop(probe);
    assert!(!fake.engine.has_probes());
    assert_eq!(fake.byte(FAR_OFF), 0x90, "the text is as the guest wrote it");
}
