//! Batches some of whose probes are left out, batches that are only checked, and patterns.

use super::*;
use crate::definition::ParseError;
use crate::{Batch, BatchError, ProbeDefinition, ProbeKind, Selection};

fn definitions<const N: usize>(lines: [&str; N]) -> Vec<ProbeDefinition> {
    lines.iter().map(|line| parse_line(line)).collect::<Result<_, ParseError>>().unwrap()
}

fn codes(refused: &[BatchError]) -> Vec<(usize, &str, &str)> {
    refused.iter().map(|one| (one.index, one.name.as_str(), one.error.code())).collect()
}

#[test]
fn what_is_refused_is_left_out_of_an_optional_batch() {
    let fake = Fake::booted();
    let lines =
        ["p:one work", "p:none no_such", "p:half far_off+2", "p:one far_off", "r:two far_off"];
    let admission = fake.engine.admit(Batch::from(definitions(lines)).optional()).unwrap();
    let expected = [(1, "none", "ENOENT"), (2, "half", "EILSEQ"), (3, "one", "EEXIST")];
    assert_eq!(codes(&admission.refused), expected);
    let rules: Vec<_> = admission.refused.iter().map(|one| one.error.rule()).collect();
    assert_eq!(rules, ["unknown", "boundary", "exists"]);
    let addresses: Vec<_> = admission.registered.iter().map(|probe| probe.addr).collect();
    assert_eq!(addresses, [Some(WORK), Some(FAR_OFF)]);
    assert_eq!([fake.byte(WORK), fake.byte(FAR_OFF)], [INT3; 2]);
    assert_eq!((fake.run(WORK), fake.hits("one")), (1, 1));
    let refused = fake.engine.admit(definitions(["p:three far_off", "p:none no_such"]));
    assert_eq!(refused.unwrap_err().index, 1, "not optional");
    assert_eq!(fake.engine.list().len(), 2);
}

#[test]
fn what_cannot_be_armed_is_left_out_too() {
    let fake = Fake::booted();
    fake.register("p:sleeps far_off");
    fake.engine.set_enabled(Selection::kprobe("kprobes", "sleeps"), false).unwrap();
    fake.write(FAR_OFF, &[0x90]);
    let lines = ["p:one far_off", "p:two work", "r:three far_off"];
    let admission = fake.engine.admit(Batch::from(definitions(lines)).optional()).unwrap();
    assert_eq!(codes(&admission.refused), [(0, "one", "ETXTBSY"), (2, "three", "ETXTBSY")]);
    assert_eq!((admission.registered.len(), fake.run(WORK), fake.hits("two")), (1, 1, 1));
    let mut names: Vec<_> = fake.engine.list().into_iter().map(|probe| probe.event).collect();
    names.sort();
    assert_eq!((names.join(" "), fake.byte(FAR_OFF)), ("sleeps two".to_owned(), 0x90));
    let all = ["p:one far_off", "r:three far_off"];
    let admission = fake.engine.admit(Batch::from(definitions(all)).optional()).unwrap();
    assert_eq!((admission.registered.len(), admission.refused.len()), (0, 2));
}

#[test]
fn a_rehearsal_changes_nothing() {
    let fake = Fake::booted();
    fake.run(FREE_INITMEM);
    fake.register("p:far far_off");
    assert_eq!(fake.engine.optimize().total, 1);
    let (text, before) = (fake.text(), fake.engine.stop_statistics().stops);
    let window = fake.guest.hidden.code_window().unwrap();
    let slots = || {
        let mut bytes = vec![0; 4096];
        fake.guest.hidden.read(window.offset, &mut bytes);
        bytes
    };
    let slots_before = slots();
    // `mov rbp, rsp` is emulated or has a slot, and is within the jmp at `far_off`.
    let lines =
        ["p:a work", "r:b far_off", "p:c far_off+1", "p:a far_off+4", "p:d entry_SYSCALL_64"];
    let checked = || Batch::from(definitions(lines)).optional();
    let rehearsal = fake.engine.rehearse(checked()).unwrap();
    assert_eq!(codes(&rehearsal.refused), [(3, "a", "EEXIST")]);
    let found: Vec<_> =
        rehearsal.accepted.iter().map(|p| (p.id, p.event.as_str(), p.addr)).collect();
    let (inside, entry) = (FAR_OFF.wrapping_add(1), ENTRY);
    let expected = [
        (0, "a", Some(WORK)),
        (0, "b", Some(FAR_OFF)),
        (0, "c", Some(inside)),
        (0, "d", Some(entry)),
    ];
    assert_eq!(found, expected);
    assert_eq!((fake.text(), slots()), (text, slots_before));
    assert_eq!(fake.engine.stop_statistics().stops, before);
    assert_eq!(fake.engine.list().len(), 1);
    let real = fake.engine.admit(checked()).unwrap();
    assert_eq!(codes(&real.refused), codes(&rehearsal.refused));
    let ids: Vec<u32> = real.registered.iter().map(|probe| probe.id).collect();
    assert_eq!(ids[0], fake.status("far").id + 1, "numbers begin where they would");
    let refused = fake.engine.rehearse(definitions(["p:e work", "p:f no_such"])).unwrap_err();
    assert_eq!((refused.index, refused.code()), (1, "ENOENT"));
}

#[test]
fn a_rehearsal_says_which_probes_would_keep_their_int3s() {
    let many = (0..17).map(|word| format!(" w{word}=$stack{word}")).collect::<String>();
    let sets: [&[&str]; 7] = [
        &[&format!("p:a far_off{many}")],
        &["p:a work", "r:b far_off"],
        &["p:a far_off", "p:b far_off+1"],
        &["p:a work", "p:b work name=+0(%di):string", "p:c far_off"],
        &["p:a far_off a=%di b=$stack1", "r:b work ret=$retval"],
        &["p:a entry_SYSCALL_64", "p:b rest_init"],
        &["r:a work", "r:b work"],
    ];
    for lines in sets {
        let fake = Fake::booted();
        let of_lines = || {
            let parsed = lines.iter().map(|line| parse_line(line));
            parsed.collect::<Result<Vec<_>, _>>().unwrap()
        };
        fake.run(FREE_INITMEM);
        let rehearsal = fake.engine.rehearse(of_lines()).unwrap();
        fake.engine.register(of_lines()).unwrap();
        let _ = fake.engine.optimize();
        for checked in rehearsal.accepted {
            let real = fake.status(&checked.event);
            assert_eq!(checked.unoptimized_reason, real.unoptimized_reason, "{lines:?}");
            assert_eq!(checked.unoptimized_reason.is_none(), real.optimized, "{lines:?}");
        }
    }
    let early = Fake::begun().engine.rehearse(definitions(["p:a work"])).unwrap();
    let why = early.accepted[0].unoptimized_reason.as_deref();
    assert_eq!(why, Some("booting: the guest has not booted yet"));
}

#[test]
fn jmps_that_cover_new_probes_are_taken_out_in_one_stop() {
    let places = ["work", "far_off"];
    let stops_of = |count: usize| {
        let fake = Fake::booted();
        fake.run(FREE_INITMEM);
        let line = |place: &&str| parse_line(&format!("p:at_{place} {place}")).unwrap();
        fake.engine.register(places.iter().map(line).collect::<Vec<_>>()).unwrap();
        assert_eq!(fake.engine.optimize().total, 2);
        let before = fake.engine.stop_statistics().stops;
        let line = |place: &&str| parse_line(&format!("p:in_{place} {place}+1")).unwrap();
        let inside = places[..count].iter().map(line).collect::<Vec<_>>();
        fake.engine.register(inside).unwrap();
        let stops = fake.engine.stop_statistics().stops - before;
        for place in &places[..count] {
            let at = if *place == "work" { WORK } else { FAR_OFF };
            assert_eq!([fake.byte(at), fake.byte(at.wrapping_add(1))], [INT3; 2], "{place}");
            assert_eq!((fake.run(at.wrapping_add(1)), fake.hits(&format!("in_{place}"))), (1, 1));
        }
        stops
    };
    assert_eq!((stops_of(1), stops_of(2)), (1, 1));
}

/// `__pfx_` is padding.
const PADDED: &str = "ffffffff81000ff0 t __pfx_work\nffffffff81001a00 t work_more\n";

#[test]
fn a_pattern_is_a_definition_for_each_function() {
    let fake = Fake::booted_with(PADDED);
    let expand = |line: &str, most| {
        let expansion = fake.engine.expand(vec![parse_line(line).unwrap()], most);
        let line = |one: super::super::ExpandedDefinition| one.definition.to_string();
        expansion.map(|found| found.definitions.into_iter().map(line).collect::<Vec<_>>())
    };
    let found = expand("r7:my/x_* *work* $retval", 2).unwrap();
    assert_eq!(
        found,
        ["r7:my/x_work work arg1=$retval", "r7:my/x_work_more work_more arg1=$retval"]
    );
    assert_eq!(expand("p ?o?k+1", 1).unwrap(), ["p:kprobes/p_work_1 work+1"]);
    for (line, code, text) in [
        ("p:g/* nothing_*", "ENOENT", "no function matches `nothing_*`"),
        ("p:g/* linux_*", "ENOENT", "no function matches `linux_*`"),
        ("p *work*", "E2BIG", "2 functions match `*work*`: --max allows 1"),
        ("p:e work*", "EINVAL", "leave out the event's name"),
    ] {
        let refused = expand(line, 1).unwrap_err();
        assert_eq!((refused.index, refused.code()), (0, code), "{line}");
        assert!(refused.error.to_string().contains(text), "{refused}");
    }
    let mixed = definitions(["p:plain far_off", "p:w/* work*", "r:none no_such"]);
    let expansion = fake.engine.expand(mixed, usize::MAX).unwrap();
    let sources: Vec<_> = expansion.definitions.iter().map(|d| (d.source, d.is_match)).collect();
    assert_eq!(sources, [(0, false), (1, true), (1, true), (2, false)]);
    // Only probes of patterns are optional.
    assert_eq!(fake.engine.admit(expansion).unwrap_err().index, 3);
    assert!(fake.engine.list().is_empty());
    let pattern = fake.engine.expand(definitions(["p:w/* work*"]), usize::MAX).unwrap();
    assert_eq!(fake.engine.admit(pattern.clone()).unwrap().registered.len(), 2);
    let again = fake.engine.admit(pattern.clone()).unwrap();
    assert_eq!((again.registered.len(), again.refused.len()), (0, 2));
    assert_eq!(fake.engine.register(pattern.all_or_none()).unwrap_err().code(), "EEXIST");
}

#[test]
fn a_star_needs_a_pattern() {
    let refused = parse_line("p:g/* work").unwrap_err();
    assert_eq!((refused.id, refused.position), ("BAD_EVENT_NAME", 4));
    for wrong in ["p:g/1* w*", "p:g/a-* w*", "p:*/e w*", "-:g/*"] {
        assert!(crate::definition::parse_command(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn events_are_selected_by_patterns() {
    let fake = Fake::booted();
    for line in ["p:vfs/read work", "r:vfs/write far_off", "p:read patched", "p:vfs2/read far_off"]
    {
        fake.register(line);
    }
    let places = |group, event| {
        let found = fake.engine.registrations(Selection::matching(group, event));
        found.map(|found| found.len()).map_err(|error| error.code())
    };
    assert_eq!(
        (places("vfs", "*"), places("*", "read"), places("vf?", "r*")),
        (Ok(2), Ok(3), Ok(1))
    );
    assert_eq!((places("none", "*"), places("vfs", "none")), (Ok(0), Err("ENOENT")));
    let returns = Selection::matching("*", "*").of_kind(ProbeKind::Kretprobe);
    assert_eq!(fake.engine.unregister(returns).unwrap().len(), 1);
    let before = fake.guest.syncs.load(Ordering::SeqCst);
    fake.engine.set_enabled(Selection::matching("*", "*"), false).unwrap();
    assert_eq!(fake.guest.syncs.load(Ordering::SeqCst), before + 1);
    let flags = fake.engine.list_of(Selection::matching("vfs*", "read")).unwrap();
    assert_eq!(flags.len(), 2);
    assert!(flags.iter().all(|probe| probe.flags == [StatusFlag::Disabled]));
    assert_eq!([WORK, FAR_OFF, PATCHED].map(|at| fake.byte(at)), [BODY[0]; 3]);
}
