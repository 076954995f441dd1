//! Registering and unregistering several, enabling and disabling, for both kinds of probes.

use exoprobe_probes::{
    Kprobe, Kretprobe, NewProbe, ProbeDefinition, ProbeError, ProbeKind, Registration, Selection,
    StatusFlag,
};
use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestGuest, address, cases, definition};

pub(crate) const CASES: &[Case] = cases![
    a_batch_of_both_kinds_is_registered_whole_or_not_at_all(vcpus),
    invalid_return_probes_are_refused(vcpus),
    unregistering_several_passes_over_those_that_are_none(vcpus),
    each_kind_is_found_by_its_own_functions_alone(vcpus),
    a_probe_can_be_registered_disabled_and_enabled_later(vcpus),
    the_switch_leaves_each_probes_own_state_as_it_is(vcpus),
];

const GETPID: &str = "__x64_sys_getpid";

fn kretprobe(line: &str) -> Kretprobe {
    definition(line).into()
}

fn any(line: &str) -> NewProbe {
    definition(line).into()
}

fn code<T>(result: Result<T, impl Into<ProbeError>>) -> &'static str {
    result.err().expect("it is refused").into().code()
}

fn a_batch_of_both_kinds_is_registered_whole_or_not_at_all(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe("r:taken getname");
    let (text, list) = (guest.kernel_text(), guest.list_text());
    let bad = [
        ("r:inside __x64_sys_getpid+1", "EINVAL"),
        ("r:taken __x64_sys_getpid", "EEXIST"),
        ("r:one ksys_write", "EEXIST"),
        ("r:unknown __x64_sys_getpidd", "ENOENT"),
        ("p:half __x64_sys_getpid+2", "EILSEQ"),
        ("r:thunk __x86_return_thunk", "EOPNOTSUPP"),
    ];
    for (line, errno) in bad {
        let lines = ["p:one __x64_sys_getpid", "r:two ksys_write", line, "r:last vfs_write"];
        let refused = guest.engine.register(lines.map(any)).unwrap_err();
        let name = line.split([':', ' ']).nth(1).unwrap();
        assert_eq!((refused.index, refused.name.as_str()), (2, name));
        assert_eq!(refused.error.code(), errno, "{line}");
        assert_eq!(guest.list_text(), list, "{line}: nothing was registered");
        assert_eq!(guest.kernel_text(), text, "{line}: nothing was written");
    }
    let lines = ["r:one __x64_sys_getpid", "r:two ksys_write", "r:three getname+1"];
    let refused = guest.engine.register(lines.map(kretprobe)).unwrap_err();
    assert_eq!((refused.index, refused.name.as_str()), (2, "three"));
    assert_eq!(guest.list_text(), list);
    // The names are free, and the numbers of the probes are in order.
    let registered = guest.engine.register([lines[0], lines[1]].map(kretprobe));
    let registered = registered.unwrap();
    assert_eq!(registered[0].addr, Some(address(GETPID)));
    assert_eq!(registered[1].addr, Some(address("ksys_write")));
    assert!(registered[0].id < registered[1].id);
    assert_eq!(guest.work("getpid 20"), 20);
    assert_eq!(guest.hits("one"), 20);
    guest.assert_unharmed();
}

fn invalid_return_probes_are_refused(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let with_data = |data_size| Kretprobe { data_size, ..kretprobe("r:data __x64_sys_getpid") };
    assert_eq!(code(guest.engine.register(with_data(4097))), "E2BIG");
    guest.engine.register(with_data(4096)).unwrap();
    for (maxactive, errno) in [(0, "EINVAL"), (4097, "EINVAL")] {
        let mut definition = definition("r:many getname");
        definition.maxactive = Some(maxactive);
        assert_eq!(code(guest.engine.register(definition)), errno, "{maxactive}");
    }
    guest.probe("r4096:many getname");
    // A definition of the other kind: a kprobe's can be a return probe's, with what that has.
    let returns = definition("r:kind getname");
    assert_eq!(code(guest.engine.register(Kprobe::from(returns))), "EINVAL");
    let retval = vec!["$retval".parse().unwrap()];
    let kprobe = ProbeDefinition { args: retval, ..definition("p:kind getname") };
    assert_eq!(code(guest.engine.register(kprobe)), "EINVAL");
    let plain = definition("p:kind __x64_sys_getpid");
    guest.engine.register(Kretprobe::from(plain)).unwrap();
    assert_eq!(guest.work("getpid 7"), 7);
    assert_eq!((guest.hits("data"), guest.hits("kind")), (7, 7));
    assert_eq!(guest.work("open /dev/null 7"), 7);
    assert_eq!((guest.hits("many"), guest.status("many").maxactive), (7, Some(4096)));
    guest.assert_unharmed();
}

fn unregistering_several_passes_over_those_that_are_none(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let text = guest.kernel_text();
    let lines = ["p:k1 __x64_sys_getpid", "r:r1 __x64_sys_getpid", "p:k2 getname", "r:r2 getname"];
    let all = guest.engine.register(lines.map(any)).unwrap();
    let bogus = Registration { id: 9999, addr: Some(address(GETPID)) };

    let several = Selection::from(&[all[0], all[1], bogus, all[2], all[0]][..]);
    let removed = guest.engine.unregister(several.of_kind(ProbeKind::Kprobe)).unwrap();
    assert_eq!(removed, [all[0], all[2]]);
    let left: Vec<String> = guest.engine.list().into_iter().map(|status| status.event).collect();
    assert_eq!(left, ["r1", "r2"]);
    assert_eq!(guest.work("getpid 10"), 10);
    assert_eq!(guest.hits("r1"), 10);

    let several = Selection::from(&[all[0], all[3], all[3]][..]);
    let removed = guest.engine.unregister(several.of_kind(ProbeKind::Kretprobe)).unwrap();
    assert_eq!(removed, [all[3]]);
    assert_eq!(guest.engine.unregister(&[all[1], all[0], bogus][..]).unwrap(), [all[1]]);
    assert_eq!(guest.engine.unregister(Selection::ids([])).unwrap(), []);
    assert!(guest.engine.list().is_empty());
    assert_eq!(guest.kernel_text(), text, "every byte is back");
    guest.assert_unharmed();
}

fn each_kind_is_found_by_its_own_functions_alone(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe("p:kprobe __x64_sys_getpid");
    guest.probe("r:kretprobe __x64_sys_getpid");
    let engine = &guest.engine;
    for (group, event) in [("kprobes", "kretprobe"), ("kprobes", "none"), ("other", "kprobe")] {
        assert_eq!(code(engine.set_enabled(Selection::kprobe(group, event), true)), "ENOENT");
        assert_eq!(code(engine.set_enabled(Selection::kprobe(group, event), false)), "ENOENT");
        assert_eq!(code(engine.unregister(Selection::kprobe(group, event))), "ENOENT");
    }
    for (group, event) in [("kprobes", "kprobe"), ("kprobes", "none"), ("other", "kretprobe")] {
        assert_eq!(code(engine.set_enabled(Selection::kretprobe(group, event), true)), "ENOENT");
        assert_eq!(code(engine.set_enabled(Selection::kretprobe(group, event), false)), "ENOENT");
        assert_eq!(code(engine.unregister(Selection::kretprobe(group, event))), "ENOENT");
    }
    assert_eq!(guest.work("getpid 5"), 5);
    assert_eq!((guest.hits("kprobe"), guest.hits("kretprobe")), (5, 5), "nothing was changed");
    guest.assert_unharmed();
}

fn a_probe_can_be_registered_disabled_and_enabled_later(vcpus: u8) {
    for letter in ['p', 'r'] {
        let guest = TestGuest::restored(vcpus);
        let text = guest.bytes(address(GETPID), 16);
        let mut definition = definition(&format!("{letter}:off {GETPID}"));
        definition.flags = vec![exoprobe_probes::definition::Flag::Disabled];
        guest.engine.register(definition).unwrap();
        assert_eq!(guest.status("off").flags, [StatusFlag::Disabled]);
        assert!(guest.list_text().ends_with("[DISABLED]\n"));
        assert_eq!(guest.bytes(address(GETPID), 16), text);
        assert_eq!(guest.work("getpid 10"), 10);
        assert_eq!((guest.hits("off"), guest.status("off").nmissed), (0, 0));
        for round in 1..=2 {
            guest.engine.set_enabled(Selection::event("kprobes", "off"), true).unwrap();
            guest.engine.set_enabled(Selection::event("kprobes", "off"), true).unwrap();
            assert_eq!(guest.status("off").flags, []);
            assert_ne!(guest.bytes(address(GETPID), 16), text);
            assert_eq!(guest.work("getpid 10"), 10);
            guest.engine.set_enabled(Selection::event("kprobes", "off"), false).unwrap();
            assert_eq!(guest.bytes(address(GETPID), 16), text);
            assert_eq!(guest.work("getpid 10"), 10);
            assert_eq!(guest.hits("off"), round * 10, "{letter}");
        }
        guest.assert_unharmed();
    }
}

fn the_switch_leaves_each_probes_own_state_as_it_is(vcpus: u8) {
    const ALL: [&str; 4] = ["k_on", "k_off", "r_on", "r_off"];
    let guest = TestGuest::restored(vcpus);
    let text = guest.bytes(address(GETPID), 16);
    for event in ALL {
        guest
            .probe(&format!("{}:{event} {GETPID}", if event.starts_with('k') { 'p' } else { 'r' }));
    }
    guest.engine.set_enabled(Selection::kprobe("kprobes", "k_off"), false).unwrap();
    guest.engine.set_enabled(Selection::kretprobe("kprobes", "r_off"), false).unwrap();
    let flags = || ALL.map(|event| guest.status(event).flags);
    let (own, hits) = (flags(), || ALL.map(|event| guest.hits(event)));
    assert_eq!(own, [vec![], vec![StatusFlag::Disabled], vec![], vec![StatusFlag::Disabled]]);
    assert!(guest.engine.is_switched_on());
    assert_eq!(guest.work("getpid 10"), 10);
    assert_eq!(hits(), [10, 0, 10, 0]);

    guest.engine.switch(false).unwrap();
    guest.engine.switch(false).unwrap();
    assert!(!guest.engine.is_switched_on());
    assert_eq!((flags(), guest.bytes(address(GETPID), 16)), (own, text.clone()));
    assert_eq!(guest.work("getpid 10"), 10);
    // What changes while it is off shows once it is on.
    guest.engine.set_enabled(Selection::kprobe("kprobes", "k_off"), true).unwrap();
    guest.engine.set_enabled(Selection::kretprobe("kprobes", "r_on"), false).unwrap();
    guest.probe(&format!("r:r_new {GETPID}"));
    assert_eq!(guest.bytes(address(GETPID), 16), text);
    assert_eq!(guest.work("par 2 getpid 10"), 20);
    assert_eq!((hits(), guest.hits("r_new")), ([10, 0, 10, 0], 0));

    guest.engine.switch(true).unwrap();
    assert_eq!(guest.work("getpid 10"), 10);
    assert_eq!((hits(), guest.hits("r_new")), ([20, 10, 10, 0], 10));
    guest.engine.switch(false).unwrap();
    guest.engine.unregister(Selection::all()).unwrap();
    assert_eq!(guest.bytes(address(GETPID), 16), text);
    guest.assert_unharmed();
}
