//! Attacks: a short run of `make hostile`, and a full disk.

use std::process::Command;

use exoprobe_tests::harness::Case;
use exoprobe_tests::{PATIENCE, Service, TestGuest, cases, exoprobe, finish, program};

pub(crate) const CASES: &[Case] = cases![
    attacks_find_nothing needs [Kvm, Loopback, Shell],
    a_trace_that_does_not_fit_leaves_the_file_that_was_there needs [Kvm, Shell],
];

/// Time of all attacks together, which is over soon: each is carried out once.
const SECONDS: &str = "1";

fn attacks_find_nothing() {
    let snapshot = TestGuest::snapshot(1);
    let mut hostile = program("hostile");
    hostile.args(["--seconds", SECONDS, "--snapshot"]).arg(snapshot);
    let output = finish(&mut hostile, PATIENCE);
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{error}");
    assert!(said.contains("registrations under load"), "{said}");
}

/// A file may have one block, as on a disk that is full then.
fn a_trace_that_does_not_fit_leaves_the_file_that_was_there() {
    let service = Service::restored(1);
    let _ = service.ok(&["probe", "add", "p:getpid __x64_sys_getpid"]);
    assert_eq!(service.work("getpid 2000"), "done getpid 2000\n");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    std::fs::write(&path, "precious").unwrap();
    let export = |limit: &str| {
        let mut command = Command::new("bash");
        // Without the signal, a write past the limit is an error, as on a full disk.
        command.args(["-c", &format!("trap '' XFSZ; ulimit -f {limit}; exec \"$0\" \"$@\"")]);
        command.arg(exoprobe().get_program()).arg("--socket").arg(service.socket());
        command.args(["export", "--output"]).arg(&path);
        finish(&mut command, PATIENCE)
    };
    let refused = export("1");
    let error = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{error}");
    assert!(error.contains("cannot write") && error.contains("trace"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
    assert!(export("unlimited").status.success());
    assert!(std::fs::metadata(&path).unwrap().len() > 10_000);
}
