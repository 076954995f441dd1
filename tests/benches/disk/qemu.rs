//! Debian's QEMU, with the machine that it has for a Linux guest without ACPI.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use exoprobe_tests::{PATIENCE, TestKernel};
use exoprobe_vmm::VmConfig;

use crate::subject::{Statistics, Subject};

/// How long to wait until a socket is asked for again.
const LOOK: Duration = Duration::from_millis(10);

/// How QEMU runs.
pub(crate) struct Setup<'a> {
    /// Its folder.
    pub(crate) folder: &'a Path,
    /// Its CPU model.
    pub(crate) cpu: &'a str,
    /// Whether the disk has a thread of its own (`-object iothread`), in place of the main loop.
    pub(crate) has_thread: bool,
}

/// A guest of QEMU; ended when this is dropped.
pub(crate) struct Qemu {
    child: Child,
    workload: Lines,
    monitor: Lines,
    /// Of its sockets.
    _folder: tempfile::TempDir,
}

/// A socket with lines.
struct Lines(BufReader<UnixStream>);

impl Lines {
    fn connect(path: &Path, child: &mut Child) -> Self {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Ok(stream) = UnixStream::connect(path) {
                return Self(BufReader::new(stream));
            }
            let ended = child.try_wait().expect("a child can be asked");
            assert!(ended.is_none(), "QEMU ended: {ended:?}");
            assert!(Instant::now() < deadline, "QEMU does not listen at {}", path.display());
            std::thread::sleep(LOOK);
        }
    }

    fn send(&mut self, line: &str) {
        let sent = self.0.get_mut().write_all(format!("{line}\n").as_bytes());
        sent.expect("QEMU reads");
    }

    fn next(&mut self) -> String {
        let mut line = String::new();
        let len = self.0.read_line(&mut line).expect("a socket");
        assert!(len > 0, "QEMU has ended: see its console");
        line.trim_end().to_owned()
    }

    /// The next line that `accept`s.
    fn wait(&mut self, accept: impl Fn(&str) -> bool) -> String {
        loop {
            let line = self.next();
            if accept(&line) {
                return line;
            }
        }
    }

    /// The answer to a command of QMP.
    fn ask(&mut self, command: &str) -> serde_json::Value {
        self.send(command);
        loop {
            let line: serde_json::Value = serde_json::from_str(&self.next()).expect("JSON");
            assert!(line.get("error").is_none(), "{command}: {line}");
            if let Some(answer) = line.get("return") {
                return answer.clone();
            }
        }
    }
}

impl Qemu {
    /// Boots the guest with one disk.
    pub(crate) fn boot(setup: &Setup<'_>, disk: &Path) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let [workload, monitor] = ["workload", "monitor"].map(|name| folder.path().join(name));
        let mut child = Command::new(setup.folder.join("ld-linux-x86-64.so.2"))
            .arg("--library-path")
            .arg(setup.folder)
            .arg(setup.folder.join("qemu-system-x86_64"))
            .args(arguments(setup, disk))
            // The guest's console, where the bench's own messages go.
            .args(["-serial", "stdio"])
            .args(["-serial", &format!("unix:{},server=on,wait=on", workload.display())])
            .args(["-qmp", &format!("unix:{},server=on,wait=off", monitor.display())])
            .stdin(Stdio::null())
            .spawn()
            .expect("QEMU starts");
        let workload = Lines::connect(&workload, &mut child);
        let monitor = Lines::connect(&monitor, &mut child);
        let mut qemu = Self { child, workload, monitor, _folder: folder };
        qemu.monitor.wait(|line| line.contains("QMP"));
        qemu.monitor.ask(r#"{"execute":"qmp_capabilities"}"#);
        qemu.workload.wait(|line| line == "ready");
        qemu
    }
}

/// All arguments but the serial ports and the monitor.
fn arguments(setup: &Setup<'_>, disk: &Path) -> Vec<String> {
    let VmConfig { kernel, initramfs, cmdline, memory_mib, .. } = TestKernel::Linux6_12.config(1);
    let text = |path: &Path| path.to_str().expect("a name of letters").to_owned();
    let initramfs = initramfs.as_deref().expect("the tiny guest has one");
    let mut all = vec!["-L".to_owned(), text(setup.folder)];
    let mut add = |words: &[&str]| all.extend(words.iter().map(|word| (*word).to_owned()));
    add(&["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-vga", "none"]);
    add(&["-machine", "pc,accel=kvm,usb=off", "-cpu", setup.cpu, "-smp", "1"]);
    add(&["-m", &memory_mib.to_string(), "-kernel", &text(&kernel), "-initrd", &text(initramfs)]);
    add(&["-append", &cmdline]);
    // As exoprobe: pread and pwrite through the host's page cache, in a thread, and fdatasync.
    let drive = "if=none,id=disk,format=raw,cache=writeback,aio=threads,file=";
    add(&["-drive", &format!("{drive}{}", text(disk))]);
    let device = "virtio-blk-pci,drive=disk,disable-legacy=on";
    if setup.has_thread {
        add(&["-object", "iothread,id=own", "-device", &format!("{device},iothread=own")]);
    } else {
        add(&["-device", device]);
    }
    all
}

impl Subject for Qemu {
    fn work(&mut self, command: &str) -> u64 {
        self.workload.send(command);
        let answers = |line: &str| line.starts_with("done ") || line.starts_with("error ");
        let line = self.workload.wait(answers);
        let count = line.strip_prefix("done ").and_then(|l| l.rsplit(' ').next()?.parse().ok());
        count.unwrap_or_else(|| panic!("`{command}` gave `{line}`"))
    }

    fn statistics(&mut self) -> Statistics {
        let answer = self.monitor.ask(r#"{"execute":"query-stats","arguments":{"target":"vcpu"}}"#);
        let found = answer[0]["stats"].as_array().expect("statistics of a vCPU");
        let number = |stat: &serde_json::Value| {
            Some((stat["name"].as_str()?.to_owned(), stat["value"].as_u64()?))
        };
        found.iter().filter_map(number).collect()
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
