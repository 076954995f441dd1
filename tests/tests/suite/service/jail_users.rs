//! An ordinary user's jail: user namespaces, or landlock alone.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use exoprobe_tests::harness::Case;
use exoprobe_tests::{Service, cases};

use crate::support::jails::{Place, USER, reachable, refusal, write};

pub(crate) const CASES: &[Case] = cases![
    a_user_in_the_group_of_kvm_runs_a_guest needs [Kvm, Root, UserNamespaces, Repeat],
    a_user_is_jailed_in_a_user_namespace needs [Kvm, Root, UserNamespaces, Repeat],
    a_user_is_jailed_by_landlock_alone needs [Kvm, Root, UserNamespaces, Landlock, Repeat],
    where_no_user_namespace_is_allowed_landlock_keeps_a_user_in
        needs [Kvm, Root, UserNamespaces, Namespaces, Landlock, Repeat],
];

fn folder_of_all(place: &Place, name: &str) -> std::path::PathBuf {
    let path = place.path(name);
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o1777)).unwrap();
    path
}

fn start(place: &Place, args: &[&str]) -> Service {
    let folder = place.folder("home");
    let jail = folder.join("jail");
    let args = [&["--jail", jail.to_str().unwrap()][..], args].concat();
    Service::started_by(&mut place.as_user(&args), &jail.join("exoprobe.sock"))
}

fn a_user_in_the_group_of_kvm_runs_a_guest() {
    let place = Place::new();
    let socket = place.folder("home").join("s");
    let runtime = place.folder("runtime");
    let mut command = place.as_user(&["--socket", socket.to_str().unwrap()]);
    command.env("XDG_RUNTIME_DIR", &runtime);
    let service = Service::started_by(&mut command, &socket);
    assert_eq!(service.status_line("Uid"), [USER; 4].map(|id| id.to_string()).join(" "));
    assert_eq!(service.work("getpid 5"), "done getpid 5\n");
    // Without the group it cannot.
    let mut command = place.as_user(&["--socket", socket.to_str().unwrap()]);
    command.env("XDG_RUNTIME_DIR", &runtime);
    drop(service);
    fs::set_permissions(place.path("kvm"), Permissions::from_mode(0o600)).unwrap();
    let error = refusal(&mut command);
    assert!(error.contains("usermod -aG kvm"), "{error}");
}

fn a_user_is_jailed_in_a_user_namespace() {
    let place = Place::new();
    let service = start(&place, &["--jail-with", "namespaces"]);
    let log = service.log();
    assert!(log.contains("a root and namespaces of its own (no network)"), "{log}");
    let found = reachable(&service);
    let named = ["vmlinux", "initramfs.cpio", "snapshot", "kvm"].map(|name| place.text(name));
    let home = place.text("home/jail/");
    let other = |path: &&String| {
        !named.contains(path) && !path.starts_with(&home) && *path != "/dev/urandom"
    };
    assert_eq!(found.iter().find(other), None, "{found:?}");
    assert!(named.iter().all(|path| found.contains(path)), "{found:?}");
    for set in ["CapPrm", "CapEff", "CapBnd"] {
        assert_eq!(service.status_line(set), "0".repeat(16), "{set}");
    }
    assert_eq!(service.work("getpid 5"), "done getpid 5\n");
    assert_eq!(service.ok(&["vm", "reboot"]), "running\n");
    let snapshot = write(&service, "snapshot", &place.path("home/jail/snap"));
    assert_eq!(snapshot.status, 200, "{snapshot:?}");
    assert!(place.path("home/jail/snap").exists());
}

/// Checks that the service writes into its own folder, and not where the user else may.
fn assert_kept_in(place: &Place, service: &Service) {
    let common = folder_of_all(place, "common");
    let outside = write(service, "snapshot", &common.join("snap"));
    assert_eq!((outside.status, &outside.json()["code"]), (422, &"EACCES".into()), "{outside:?}");
    assert_eq!(fs::read_dir(common).unwrap().count(), 0);
    let dump = write(service, "dump", &place.path("home/jail/core"));
    assert_eq!(dump.status, 200, "{dump:?}");
    let snapshot = write(service, "snapshot", &place.path("home/jail/snap"));
    assert_eq!(snapshot.status, 200, "{snapshot:?}");
    assert_eq!(service.ok(&["vm", "reboot"]), "running\n");
}

fn a_user_is_jailed_by_landlock_alone() {
    let place = Place::new();
    let service = start(&place, &["--jail-with", "landlock"]);
    let log = service.log();
    assert!(log.contains("the host's root, landlock\n"), "{log}");
    assert_eq!(service.work("getpid 5"), "done getpid 5\n");
    assert_kept_in(&place, &service);
    drop(service);
    // The same user writes there without a jail.
    let runtime = place.folder("runtime");
    let socket = runtime.join("s");
    let mut command = place.as_user(&["--socket", socket.to_str().unwrap()]);
    let free = Service::started_by(command.env("XDG_RUNTIME_DIR", &runtime), &socket);
    let snapshot = write(&free, "snapshot", &place.path("common/snap"));
    assert_eq!(snapshot.status, 200, "{snapshot:?}");
}

/// Linux allows no user namespaces in a changed root (user_namespaces(7)): as a host that forbids
/// them.
fn where_no_user_namespace_is_allowed_landlock_keeps_a_user_in() {
    let place = Place::new();
    let jail = place.folder("home").join("jail");
    let root = place.text("root");
    fs::create_dir(&root).unwrap();
    let confined = |args: &[&str]| {
        let inner = place.as_user(&[&["--jail", jail.to_str().unwrap()][..], args].concat());
        let mut command = Command::new("unshare");
        let script = "mount --rbind / \"$0\" && exec chroot \"$0\" \"$@\"";
        command.args(["-m", "sh", "-c", script, &root]).arg(inner.get_program());
        command.args(inner.get_args());
        command
    };
    let error = refusal(&mut confined(&["--jail-with", "namespaces"]));
    assert!(error.contains("allows uid 65534 no user namespace"), "{error}");
    let service = Service::started_by(&mut confined(&[]), &jail.join("exoprobe.sock"));
    let log = service.log();
    assert!(log.contains("the host's root, landlock\n"), "{log}");
    assert_kept_in(&place, &service);
}
