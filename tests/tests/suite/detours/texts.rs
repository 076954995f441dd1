//! Texts and memory of users in detours.

use exoprobe_probes::Selection;
use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestGuest, cases};

use super::optimize::breakpoints;
use crate::support::returned::events_of;

pub(crate) const CASES: &[Case] = cases![
    texts_and_memory_of_users_are_recorded_without_an_exit(vcpus),
    texts_that_cannot_be_read_in_the_guest_are_read_by_the_vmm(vcpus),
];

/// A path of /dev/null, of so many bytes.
fn long_path(len: usize) -> String {
    let end = "/dev/null";
    let before = len - end.len();
    format!("{}{}{end}", "/.".repeat(before / 2), "/".repeat(before % 2))
}

/// The values of an argument of an event's hits.
fn texts_of(guest: &TestGuest, event: &str, arg: &str) -> Vec<String> {
    let events = events_of(guest, event);
    events.iter().map(|event| event.args[arg].as_str().unwrap_or_default().to_owned()).collect()
}

fn texts_and_memory_of_users_are_recorded_without_an_exit(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe("p:user do_sys_openat2 path=+0(%si):ustring word=+u0(%si) how=%dx");
    // A struct filename begins with the address of its text.
    guest.probe("p:kernel do_filp_open path=+0(+0(%si)):string banner=@linux_banner:string");
    guest.probe("r:both do_sys_openat2 path=+0($arg2):string fd=$retval:s32");
    ["user", "kernel", "both"].iter().for_each(|event| guest.optimize(event));
    let before = breakpoints(&guest);
    let paths: Vec<String> = (9..40).chain([100, 240]).map(long_path).collect();
    for path in &paths {
        assert_eq!(guest.work(&format!("open {path} 3")), 3);
    }
    assert_eq!(breakpoints(&guest), before);
    let expected: Vec<&str> = paths.iter().flat_map(|path| [path.as_str(); 3]).collect();
    for event in ["user", "kernel", "both"] {
        assert_eq!(texts_of(&guest, event, "path"), expected, "{event}");
    }
    let banners = texts_of(&guest, "kernel", "banner");
    assert!(banners.iter().all(|text| text.starts_with("Linux version 6")), "{}", banners[0]);
    let word =
        |path: &str| format!("{:#x}", u64::from_le_bytes(*path.as_bytes().first_chunk().unwrap()));
    let words: Vec<String> = expected.iter().map(|path| word(path)).collect();
    assert_eq!(texts_of(&guest, "user", "word"), words);
    for event in ["user", "kernel", "both"] {
        let status = guest.status(event);
        let count = u64::try_from(expected.len()).unwrap();
        assert_eq!(
            (status.hits, status.recorded, status.lost, status.nmissed),
            (count, count, 0, 0)
        );
    }
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

/// A pointer to nothing faults in the detour; a text may be longer than it has room for.
fn texts_that_cannot_be_read_in_the_guest_are_read_by_the_vmm(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe("p:one do_sys_openat2 path=+0(%si):ustring");
    guest.optimize("one");
    let before = breakpoints(&guest);
    assert_eq!(guest.work("badptr 10"), 10);
    let faults = guest.hits("one");
    assert!(faults > 1);
    assert_eq!(breakpoints(&guest) - before, faults, "one exit a hit");
    assert!(texts_of(&guest, "one", "path").iter().all(|text| text == "(fault)"));
    assert_eq!(guest.work("open /dev/null 10"), 10);
    assert_eq!((breakpoints(&guest) - before, guest.hits("one")), (faults, faults + 10));
    guest.engine.unregister(Selection::all()).unwrap();
    let four = "a=+0(%si):ustring b=+0(%si):ustring c=+0(%si):ustring d=+0(%si):ustring";
    guest.probe(&format!("p:four do_sys_openat2 {four}"));
    guest.optimize("four");
    // With its NUL each has 31 words.
    let (most, more) = (long_path(247), long_path(248));
    for (path, exits) in [(&most, 0), (&more, 7)] {
        let before = breakpoints(&guest);
        assert_eq!(guest.work(&format!("open {path} 7")), 7);
        assert_eq!(breakpoints(&guest) - before, exits, "{path}");
    }
    let expected = [vec![most; 7], vec![more; 7]].concat();
    for arg in ["a", "b", "c", "d"] {
        assert_eq!(texts_of(&guest, "four", arg), expected);
    }
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}
