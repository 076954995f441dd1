//! The unit file for systemd: judged, and started by a systemd of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use exoprobe_tests::harness::Case;
use exoprobe_tests::{PATIENCE, Running, cases, confinement, finish};

use crate::support::jails::{Place, refusal};

pub(crate) const CASES: &[Case] = cases![
    the_unit_file_leaves_little_exposed needs [SystemdAnalyze],
    systemd_starts_the_unit needs [Kvm, Root, Namespaces, Landlock, Systemd, Repeat],
];

/// Highest exposure that `systemd-analyze` may give the unit, of 10.
const EXPOSURE: f64 = 2.0;
/// The service's folder, and its socket.
const JAIL: &str = "/run/exoprobe/guest1/jail";
const UNIT: &str = "exoprobe@guest1";

fn unit_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/exoprobe@.service")
}

/// A systemd that is process 1 of its own namespaces, in a cgroup of its own, over an overlay of
/// the host's root. The machine `guest1` is the tiny guest, restored.
struct Systemd {
    /// The parent of process 1, which goes with it.
    unshare: Running,
    pid: String,
    cgroup: PathBuf,
    /// The files of the machine.
    _place: Place,
}

impl Systemd {
    fn boot() -> Self {
        let place = Place::new();
        fs::copy(unit_file(), place.path("exoprobe@.service")).unwrap();
        let mount = confinement::cgroup_mount().unwrap();
        let cgroup = mount.join(format!("exoprobe-test-{}", std::process::id()));
        fs::create_dir(&cgroup).unwrap();
        let script = "echo $$ >\"$0/cgroup.procs\" && exec unshare -m -p -f -C -i -u --kill-child \
            bash -c \"$1\" bash \"$2\"";
        let mut command = Command::new("bash");
        command.args(["-c", script, cgroup.to_str().unwrap(), include_str!("systemd.sh")]);
        let unshare = Running::spawn(command.arg(place.text("")));
        let mut systemd = Self { unshare, pid: String::new(), cgroup, _place: place };
        let children = format!("/proc/{0}/task/{0}/children", systemd.unshare.pid());
        systemd.wait("a process 1", |it| {
            it.pid = fs::read_to_string(&children).unwrap_or_default().trim().to_owned();
            let name = fs::read_to_string(format!("/proc/{}/comm", it.pid)).unwrap_or_default();
            name == "systemd\n"
        });
        systemd.wait("its target", |it| it.run(&["systemctl", "is-active", "multi-user.target"]).0);
        systemd
    }

    fn wait(&mut self, what: &str, mut is_there: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_there(self) {
            let ended = self.unshare.ended();
            assert!(ended.is_none() && Instant::now() < deadline, "no {what}; {}", self.unshare);
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Runs a program in the namespaces. Returns whether it succeeded, and its output.
    fn run(&self, words: &[&str]) -> (bool, String) {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.pid, "-m", "-p", "-C", "-i", "-u", "-r", "-w"]).args(words);
        let output = finish(&mut command, PATIENCE);
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    fn ok(&self, words: &[&str]) -> String {
        let (succeeded, text) = self.run(words);
        let journal = || self.run(&["journalctl", "--no-pager", "-u", UNIT]).1;
        assert!(succeeded, "{words:?}: {text}{}", journal());
        text
    }

    fn exoprobe(&self, words: &[&str]) -> String {
        let socket = format!("{JAIL}/exoprobe.sock");
        self.ok(&[&["exoprobe", "--socket", &*socket][..], words].concat())
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        self.unshare.signal(libc::SIGKILL);
        let _ = self.unshare.wait(PATIENCE);
        // Its processes go with process 1, a moment later.
        let deadline = Instant::now() + PATIENCE;
        let cgroup = self.cgroup.to_str().expect("made of text");
        let remove = ["-depth", "-type", "d", "-exec", "rmdir", "{}", "+"];
        while self.cgroup.exists() && Instant::now() < deadline {
            drop(Command::new("find").arg(cgroup).args(remove).output());
        }
    }
}

fn systemd_starts_the_unit() {
    let mut systemd = Systemd::boot();
    systemd.ok(&["systemctl", "start", UNIT]);
    // The program runs then, and listens a moment later.
    let socket = format!("{JAIL}/exoprobe.sock");
    let status = ["exoprobe", "--socket", &*socket, "vm", "status"];
    systemd.wait("service", |it| it.run(&status).0);
    systemd.exoprobe(&["vm", "send", "ping"]);
    let _ = systemd.exoprobe(&["probe", "add", "p:getpid __x64_sys_getpid"]);
    assert_eq!(systemd.exoprobe(&["vm", "send", "getpid", "5"]), "done getpid 5\n");
    assert!(systemd.exoprobe(&["probe", "list"]).contains(" 5 "));
    let _ = systemd.exoprobe(&["probe", "rm", "--all"]);
    let _ = systemd.exoprobe(&["vm", "snapshot", &format!("{JAIL}/snap")]);
    assert_eq!(systemd.exoprobe(&["vm", "reboot"]), "running\n");
    let journal = systemd.ok(&["journalctl", "--no-pager", "-o", "cat", "-u", UNIT]);
    assert!(journal.contains(&format!("jailed in {JAIL}: uid ")), "{journal}");
    assert!(journal.contains("the host's root, landlock\n"), "{journal}");
    let main = systemd.ok(&["systemctl", "show", "-P", "MainPID", UNIT]);
    let status = systemd.ok(&["cat", &format!("/proc/{}/status", main.trim())]);
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
        line.unwrap().split_whitespace().next().unwrap().to_owned()
    };
    assert_ne!(field("Uid"), "0");
    assert_eq!((field("NoNewPrivs"), field("Seccomp")), ("1".to_owned(), "2".to_owned()));
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(set), "0".repeat(16), "{set}");
    }
    systemd.ok(&["systemctl", "stop", UNIT]);
    assert_eq!(systemd.ok(&["systemctl", "show", "-P", "Result", UNIT]), "success\n");
}

fn the_unit_file_leaves_little_exposed() {
    let unit = unit_file();
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("exoprobe@.service");
    fs::copy(&unit, &copy).unwrap();
    let mut analyze = Command::new("systemd-analyze");
    analyze.args(["security", "--offline=true", "--no-pager"]).arg(&copy);
    let output = finish(&mut analyze, PATIENCE);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let exposure = text.lines().find_map(|line| line.split_once("exposure level for "));
    let exposure = exposure.and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
    let exposure: f64 = exposure.unwrap_or_else(|| panic!("{text}: {output:?}"));
    assert!(exposure <= EXPOSURE, "{exposure}: {text}");
    // Its command line is one that the program takes: it gets as far as the machine's file.
    let text = fs::read_to_string(&unit).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/exoprobe "));
    let words: Vec<&str> = line.unwrap().split_whitespace().collect();
    assert_eq!(words[..3], ["run", "--config", "/etc/exoprobe/%i.toml"]);
    let file = dir.path().join("m.toml");
    fs::write(&file, "kernel = \"missing\"\n").unwrap();
    let jail = dir.path().join("jail");
    let words = words.iter().map(|word| match *word {
        "/etc/exoprobe/%i.toml" => file.to_str().unwrap(),
        "${RUNTIME_DIRECTORY}/jail" => jail.to_str().unwrap(),
        word => word,
    });
    let mut command = exoprobe_tests::exoprobe();
    let error = refusal(command.args(words));
    assert!(error.contains("needs --uid") || error.contains("missing: No such file"), "{error}");
}
