//! The program from the outside: arguments, sockets, signals, the host.

use std::fs::Permissions;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use exoprobe_tests::harness::Case;
use exoprobe_tests::http::{self, Answer};
use exoprobe_tests::{
    PATIENCE, Running, Service, TestGuest, cases, exoprobe, finish, guest_file, host,
};

use crate::support::refused::refused;

pub(crate) const CASES: &[Case] = cases![
    bad_images_are_refused_before_anything_runs needs [Kvm, Repeat],
    a_host_without_kvm_gets_a_hint,
    a_user_without_the_right_to_kvm_gets_a_hint needs [Kvm, GuardedKvm, Root],
    doctor_prints_its_findings,
    a_host_that_emulates_prints_a_warning_and_fast_boot_its_words,
    a_corrupt_payload_is_refused_where_it_is_unpacked_here needs [Kvm, Repeat],
    a_socket_in_use_is_refused_and_a_stale_one_replaced needs [Kvm, Repeat],
    a_bzimage_alone_is_probed_from_its_beginning_and_sigterm_ends_it_cleanly,
    tcp_needs_a_token needs [Kvm, Loopback, Repeat],
    silent_tcp_clients_take_nothing_from_the_unix_socket needs [Kvm, Loopback, Shell],
    the_command_line_does_the_main_job,
    the_console_comes_on_standard_output_to_its_end,
    ls_names_live_services_and_dead_sockets needs [Kvm, Repeat],
    a_guest_that_resets_itself_boots_again_if_so_asked needs [Kvm, QuickKernel],
    a_reboot_reads_no_file_that_only_a_snapshot_names needs [Kvm, Repeat],
    a_file_starts_a_guest_and_a_guest_gives_its_file needs [Kvm, Repeat],
];

/// Open files that a service may have which is to run out of them.
const FEW_DESCRIPTORS: u32 = 128;

fn snapshot() -> String {
    TestGuest::snapshot(1).to_str().unwrap().to_owned()
}

fn bad_images_are_refused_before_anything_runs() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let vmlinux = guest_file("vmlinux");
    let vmlinux = vmlinux.to_str().unwrap();
    let whole = std::fs::read(vmlinux).unwrap();
    let truncated = file("truncated", &whole[..whole.len() / 3]);
    let bzimage = std::fs::read(guest_file("bzImage")).unwrap();
    let mut other = whole[..4096].to_vec();
    other[18] = 183;
    let cases = [
        (vec!["--kernel".to_owned(), "/nonexistent/vmlinux".into()], "/nonexistent/vmlinux"),
        (vec!["--kernel".into(), file("empty", b"")], "empty"),
        (
            vec!["--kernel".into(), truncated.clone(), "--symbols".into(), vmlinux.into()],
            "truncated",
        ),
        (
            vec![
                "--kernel".into(),
                file("cut", &bzimage[..500_000]),
                "--symbols".into(),
                vmlinux.into(),
            ],
            "truncated",
        ),
        (
            vec!["--kernel".into(), file("arm", &other), "--symbols".into(), vmlinux.into()],
            "x86-64",
        ),
        (
            vec!["--kernel".into(), file("text", b"hello"), "--symbols".into(), vmlinux.into()],
            "vmlinux or a bzImage",
        ),
        (
            vec![
                "--kernel".into(),
                vmlinux.into(),
                "--memory".into(),
                "32".into(),
                "--initramfs".into(),
                file("huge", &vec![0; 40 << 20]),
            ],
            "MiB of memory or more",
        ),
        (vec!["--restore".into(), truncated], "snapshot"),
        (vec!["--kernel".into(), vmlinux.into(), "--vcpus".into(), "99".into()], "vCPU"),
    ];
    for (args, part) in cases {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let error = refused(&args);
        assert!(error.contains(part), "{args:?}: {error}");
    }
}

fn a_host_without_kvm_gets_a_hint() {
    let snapshot = snapshot();
    let error = refused(&["--restore", &snapshot, "--kvm", "/nonexistent/kvm"]);
    assert!(error.contains("modprobe"), "{error}");
    let error = refused(&["--restore", &snapshot, "--kvm", "/dev/null"]);
    assert!(error.contains("no KVM device"), "{error}");
    let doctor = finish(exoprobe().args(["doctor", "--kvm", "/nonexistent/kvm"]), PATIENCE);
    assert!(!doctor.status.success());
}

fn a_user_without_the_right_to_kvm_gets_a_hint() {
    // The user `nobody` must be able to read the program: a copy in a folder that is.
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("exoprobe");
    std::fs::copy(exoprobe().get_program(), &copy).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).unwrap();
    let mut doctor = Command::new(&copy);
    let output = finish(doctor.arg("doctor").uid(65534).gid(65534), PATIENCE);
    let text = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && text.contains("usermod -aG kvm"), "{text}");
}

fn doctor_prints_its_findings() {
    let json = finish(exoprobe().args(["doctor", "--json"]), PATIENCE);
    assert!(json.status.success());
    let found: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(found.to_string().contains("breakpoint"), "{found}");
}

fn a_host_that_emulates_prints_a_warning_and_fast_boot_its_words() {
    let (kernel, initramfs) = (guest_file("bzImage"), guest_file("initramfs.cpio"));
    let args = ["--kernel", kernel.to_str().unwrap(), "--initramfs", initramfs.to_str().unwrap()];
    let cmdline = ["--cmdline", "console=ttyS0 -- --an-argument-of-init"];
    let service = Service::start(&[&args[..], &cmdline, &["--fast-boot"]].concat());
    let deadline = Instant::now() + PATIENCE;
    // The kernel prints its command line among the first lines, and all of them come at once.
    let console = loop {
        let console = service.ok(&["vm", "console"]);
        if console.contains("Kernel command line") {
            break console;
        }
        assert!(Instant::now() < deadline, "{console}");
        std::thread::sleep(Duration::from_millis(100));
    };
    let log = service.log();
    let added = log
        .lines()
        .find_map(|line| line.split_once("--fast-boot added to the kernel command line: "));
    let words = added.unwrap_or_else(|| panic!("{log}")).1;
    assert!(words.contains("initcall_blacklist=slab_sysfs_init"), "{words}");
    let line = console.lines().find(|line| line.contains("Command line:")).expect(&console);
    let (kernel, init) = line.split_once(" -- ").expect(line);
    assert!(kernel.contains(words) && init.trim() == "--an-argument-of-init", "{line}");
    let software = host().profile().software;
    assert_eq!(log.contains("this host has software-only KVM"), software.is_some(), "{log}");
    let doctor = finish(exoprobe().arg("doctor"), PATIENCE);
    let text = String::from_utf8_lossy(&doctor.stdout);
    assert_eq!(text.contains("--fast-boot"), software.is_some(), "{text}");
}

fn a_corrupt_payload_is_refused_where_it_is_unpacked_here() {
    if host().profile().software.is_none() {
        // There the guest's own decompressor finds it out.
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut image = std::fs::read(guest_file("bzImage")).unwrap();
    let middle = image.len() / 2;
    image[middle..middle + 4096].fill(0xff);
    let path = dir.path().join("bzImage");
    std::fs::write(&path, image).unwrap();
    let error = refused(&["--kernel", path.to_str().unwrap()]);
    assert!(error.contains("cannot be unpacked") && error.contains("corrupt"), "{error}");
}

fn a_socket_in_use_is_refused_and_a_stale_one_replaced() {
    let snapshot = snapshot();
    let mut service = Service::start(&["--restore", &snapshot]);
    let socket = service.socket().to_str().unwrap().to_owned();
    let run = ["run", "--restore", &snapshot, "--socket", &socket];
    let second = finish(exoprobe().args(run), PATIENCE);
    let error = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && error.contains(&socket), "{error}");
    assert_eq!(http::ask(service.socket(), "GET", "/v1/vm", &[], b"").status, 200, "unharmed");
    service.end(libc::SIGKILL);
    assert!(service.socket().exists(), "a killed service leaves its socket");
    let third = finish(exoprobe().args(["vm", "status", "--socket", &socket]), PATIENCE);
    assert_eq!(third.status.code(), Some(3), "no service");
    let mut next = Running::spawn(exoprobe().args(run));
    next.wait_for_socket(Path::new(&socket), PATIENCE);
}

fn a_bzimage_alone_is_probed_from_its_beginning_and_sigterm_ends_it_cleanly() {
    let (kernel, initramfs) = (guest_file("bzImage"), guest_file("initramfs.cpio"));
    let args = [
        "--kernel",
        kernel.to_str().unwrap(),
        "--initramfs",
        initramfs.to_str().unwrap(),
        "--memory",
        "32",
        "--probe",
        "p:begin start_kernel",
    ];
    let mut service = Service::start(&args);
    // Registered before the guest ran, so that its only call is a hit.
    let deadline = Instant::now() + PATIENCE;
    while !service.ok(&["probe", "show", "begin"]).lines().any(is_one_hit) {
        assert!(Instant::now() < deadline, "{}", service.ok(&["probe", "show", "begin"]));
        std::thread::sleep(Duration::from_millis(100));
    }
    let found = service.ok(&["symbols", "start_kernel"]);
    assert!(found.contains("function  start_kernel"), "{found}");
    assert!(service.ok(&["symbols", "start_k*", "--limit", "5"]).contains("start_kernel"));
    // However far the kernel is: the probe is there, and waits if it must.
    let added = service.ok(&["probe", "add", "p:early __x64_sys_getpid", "r:ret rest_init"]);
    assert!(added.contains("early") && added.contains("ret"), "{added}");
    let status = service.end(libc::SIGTERM);
    assert!(status.success(), "{status}: {}", service.log());
    assert!(!service.socket().exists(), "the socket is removed");
}

fn is_one_hit(line: &str) -> bool {
    line.split_whitespace().eq(["hits", "1"])
}

fn tcp_needs_a_token() {
    let snapshot = snapshot();
    let error = refused(&["--restore", &snapshot, "--listen", "127.0.0.1:0"]);
    assert!(error.contains("token"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "correct-horse-battery\n").unwrap();
    let refused_file = || {
        let token = token.to_str().unwrap();
        let listen = ["--restore", &snapshot, "--listen", "127.0.0.1:0", "--token-file", token];
        refused(&listen)
    };
    set_mode(&token, 0o644);
    assert!(refused_file().contains("chmod 600"));
    set_mode(&token, 0o600);
    std::fs::write(&token, "short\n").unwrap();
    assert!(refused_file().contains("needs 16"));
    std::fs::write(&token, "correct-horse-battery\n").unwrap();
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let service = Service::start(&[
        "--restore",
        &snapshot,
        "--listen",
        &address,
        "--token-file",
        token.to_str().unwrap(),
    ]);
    let ask = |headers: &[&str]| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&http::request("GET", "/v1/vm", headers, b"")).unwrap();
        Answer::read(stream)
    };
    for headers in
        [&[][..], &["authorization: Bearer wrong"], &["authorization: Basic correct-horse-battery"]]
    {
        let answer = ask(headers);
        assert_eq!(answer.status, 401, "{answer:?}");
        assert!(answer.head.to_lowercase().contains("www-authenticate: bearer"), "{answer:?}");
    }
    assert_eq!(ask(&["authorization: Bearer correct-horse-battery"]).status, 200);
    let log = service.log();
    assert!(log.contains("without the right token") && log.contains("127.0.0.1:"), "{log}");
}

fn silent_tcp_clients_take_nothing_from_the_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "correct-horse-battery\n").unwrap();
    set_mode(&token, 0o600);
    let (snapshot, token) = (snapshot(), token.to_str().unwrap());
    let listen = ["--restore", &snapshot, "--listen", "127.0.0.1:0", "--token-file", token];
    let service = Service::start_with_descriptors(FEW_DESCRIPTORS, &listen);
    let address = service.tcp_address();
    // Until the socket's queue is full as well: connecting takes as long as the service wants then.
    let target = address.parse().unwrap();
    let connect = |_| TcpStream::connect_timeout(&target, Duration::from_secs(5)).ok();
    let silent: Vec<TcpStream> = (0..2 * FEW_DESCRIPTORS).map_while(connect).collect();
    assert!(silent.len() > FEW_DESCRIPTORS as usize / 2, "only {}", silent.len());
    for _ in 0..10 {
        assert_eq!(http::ask(service.socket(), "GET", "/v1/vm", &[], b"").status, 200);
    }
    drop(silent);
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let header = ["authorization: Bearer correct-horse-battery"];
    stream.write_all(&http::request("GET", "/v1/vm", &header, b"")).unwrap();
    assert_eq!(Answer::read(stream).status, 200);
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn the_command_line_does_the_main_job() {
    let service = Service::start(&["--restore", &snapshot()]);
    let added = service.ok(&["probe", "add", "p:getpid __x64_sys_getpid", "p:w ksys_write %di"]);
    assert!(added.contains("getpid"), "{added}");
    assert!(service.work("getpid 1000").contains("done getpid 1000"));
    let list = service.ok(&["probe", "list"]);
    assert!(list.contains("__x64_sys_getpid") && list.contains("1000"), "{list}");
    let json: serde_json::Value =
        serde_json::from_str(&service.ok(&["--json", "probe", "show", "getpid"])).unwrap();
    assert_eq!(json["hits"], 1000);
    let _ = service.ok(&["probe", "disable", "getpid"]);
    assert!(service.ok(&["probe", "list"]).contains("disabled"));
    let _ = service.ok(&["probe", "enable", "getpid"]);
    let events = service.ok(&["events", "--limit", "3"]);
    assert_eq!(events.lines().count(), 3, "{events}");
    let unknown = service.client(&["probe", "add", "p:x __x64_sys_getpidd"]);
    let error = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert_eq!(unknown.status.code(), Some(1));
    assert!(error.contains("ENOENT") && error.contains("__x64_sys_getpid"), "{error}");
    let _ = service.ok(&["probe", "rm", "--all"]);

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("probes.json");
    let json = r#"[{"event": "deaf", "symbol_name": "do_sys_openat2", "actions": [{"return": "-5"}]},
        {"kind": "r", "event": "pid", "symbol_name": "__x64_sys_getpid", "args": ["$retval"],
         "actions": ["stack"]}]"#;
    std::fs::write(&file, json).unwrap();
    let added = service.ok(&["probe", "add", "--wait", "600", "-f", file.to_str().unwrap()]);
    assert!(added.lines().any(|line| line.starts_with("r     pid ")), "{added}");
    let timeout = PATIENCE.as_secs().to_string();
    let refused = service.client(&["vm", "send", "--timeout", &timeout, "open /dev/null 1"]);
    assert_eq!(refused.stdout, b"error open: openat: errno 5 (0 done)\n");
    assert_eq!(service.ok(&["probe", "switch", "off"]), "off\n");
    let _ = service.work("open /dev/null 1");
    assert_eq!(service.ok(&["probe", "switch", "on"]), "on\n");
    let _ = service.work("getpid 1");
    let events = service.ok(&["events"]);
    let mut lines = events.lines().skip_while(|line| !line.contains(" <- __x64_sys_getpid)"));
    assert!(lines.next().unwrap().ends_with(" arg1=0x1"), "{events}");
    assert_eq!(lines.next(), Some("        => __x64_sys_getpid+0x0"), "{events}");
    let mut callers = lines.take_while(|line| line.starts_with("        => "));
    assert!(callers.any(|line| line.starts_with("        => do_syscall_64+0x")), "{events}");
    let removed = service.client(&["probe", "rm", "deaf", "nothing", "pid"]);
    assert_eq!(removed.status.code(), Some(1));
    let error = String::from_utf8_lossy(&removed.stderr).into_owned();
    assert!(error.starts_with("nothing: ") && error.contains("1 of 3"), "{error}");
    assert_eq!(service.ok(&["probe", "list", "--json"]), "[]\n");
    let blacklist = service.ok(&["probe", "blacklist"]);
    assert!(blacklist.starts_with("START ") && blacklist.contains("asm_exc_nmi"), "{blacklist}");

    let _ = service.ok(&["vm", "pause"]);
    assert!(service.ok(&["vm", "status"]).contains("paused"));
    let _ = service.ok(&["vm", "resume"]);
    assert!(service.work("ping").contains("done ping"));
}

fn the_console_comes_on_standard_output_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s").to_str().unwrap().to_owned();
    let mut command = exoprobe();
    command.args(["run", "--restore", &snapshot(), "--console", "--exit-with-guest"]);
    let mut running = Running::spawn(command.args(["--socket", &socket]));
    running.wait_for_socket(Path::new(&socket), PATIENCE);
    let sent = finish(exoprobe().args(["vm", "send", "panic", "--socket", &socket]), PATIENCE);
    let ended = running.finish(PATIENCE);
    assert!(!ended.status.success(), "a panic is no good end");
    let console = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(console.contains("Kernel panic"), "{sent:?}: {console}");
}

fn a_guest_that_resets_itself_boots_again_if_so_asked() {
    let boots = |service: &Service, wanted: u64| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status: serde_json::Value =
                serde_json::from_str(&service.ok(&["--json", "vm", "status"])).unwrap();
            if status["boots"] == wanted && status["state"] == "running" {
                return;
            }
            assert!(Instant::now() < deadline, "{status}: {}", service.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let reset = |service: &Service| {
        let answer = http::ask(service.socket(), "POST", "/v1/vm/serial/1", &[], b"reboot\n");
        assert_eq!(answer.status, 204, "{answer:?}");
    };
    let (snapshot, files) = (snapshot(), Service::boot_files());
    let restore = ["--restore", &snapshot, "--reboot", "--exit-with-guest"];
    let service = Service::start(&[&restore[..], &files.each_ref().map(String::as_str)].concat());
    boots(&service, 1);
    reset(&service);
    boots(&service, 2);
    assert_eq!(service.ok(&["vm", "reboot"]), "running\n");
    boots(&service, 3);
    // What waits at the port is read by the third boot, when it is so far.
    reset(&service);
    boots(&service, 4);
    assert_eq!(service.log().matches("it reset itself; it boots again").count(), 2);
    assert_eq!(service.ok(&["vm", "shutdown"]), "stopped\n");
}

fn ls_names_live_services_and_dead_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = dir.path().join("runtime");
    std::fs::create_dir(&runtime).unwrap();
    let mut start = |name: &str| {
        let socket = dir.path().join(name);
        let mut command = exoprobe();
        command.env("XDG_RUNTIME_DIR", &runtime).args(["run", "--restore", &snapshot()]);
        let mut running = Running::spawn(command.arg("--socket").arg(&socket));
        running.wait_for_socket(&socket, PATIENCE);
        running
    };
    let list = || {
        let output =
            finish(exoprobe().env("XDG_RUNTIME_DIR", &runtime).args(["ls", "--json"]), PATIENCE);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<Vec<serde_json::Value>>(&output.stdout).unwrap()
    };
    assert_eq!(list(), [] as [serde_json::Value; 0]);
    let [first, second, third] = ["a.sock", "b.sock", "c.sock"].map(&mut start);
    let rows = list();
    let shown: Vec<_> =
        rows.iter().map(|row| (&row["state"], &row["pid"], &row["vcpus"])).collect();
    let pids = [&first, &second, &third].map(|running| serde_json::Value::from(running.pid()));
    let (state, vcpus) = ("running".into(), 1.into());
    assert_eq!(shown, pids.each_ref().map(|pid| (&state, pid, &vcpus)));
    // Killed, its socket stays; ended, it goes.
    second.signal(libc::SIGKILL);
    drop(second);
    first.signal(libc::SIGTERM);
    assert!(first.finish(PATIENCE).status.success());
    let rows = list();
    assert_eq!(rows[0]["state"], "dead", "{rows:?}");
    assert!(rows[0]["socket"].as_str().unwrap().ends_with("/b.sock"), "{rows:?}");
    assert_eq!((rows.len(), &rows[1]["pid"]), (2, &pids[2]));
    assert!(dir.path().join("b.sock").exists(), "it is left alone");
}

fn a_reboot_reads_no_file_that_only_a_snapshot_names() {
    let error = refused(&["--restore", &snapshot(), "--reboot"]);
    assert!(error.contains("--kernel PATH"), "{error}");
    let error = refused(&["--restore", &snapshot(), "--initramfs", "x"]);
    assert!(error.contains("--kernel"), "{error}");
    let service = Service::start(&["--restore", &snapshot()]);
    let answer = http::ask(service.socket(), "POST", "/v1/vm/reboot", &[], b"");
    assert_eq!((answer.status, &answer.json()["code"]), (409, &"ENODATA".into()), "{answer:?}");
    let output = service.client(&["vm", "reboot"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("--restore SNAPSHOT --kernel PATH"), "{error}");
    let status: serde_json::Value =
        serde_json::from_str(&service.ok(&["--json", "vm", "status"])).unwrap();
    assert_eq!((&status["state"], &status["boots"]), (&"running".into(), &1.into()), "{status}");
    assert_eq!(service.work("getpid 5"), "done getpid 5\n", "the guest goes on");
}

fn a_file_starts_a_guest_and_a_guest_gives_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("machine.toml");
    let disk = dir.path().join("disk.raw");
    std::fs::File::create(&disk).unwrap().set_len(1 << 20).unwrap();
    let text = format!(
        "kernel = {:?}\ninitramfs = {:?}\nmemory = 32\nvcpus = 2\nprobe = [\"p:a vfs_read\"]\n\
         [[disk]]\npath = \"disk.raw\"\nmode = \"overlay\"\n",
        guest_file("vmlinux"),
        guest_file("initramfs.cpio"),
    );
    std::fs::write(&path, text).unwrap();
    let started = |file: &Path| {
        let service = Service::start(&["--config", file.to_str().unwrap(), "--events", "100"]);
        let mut config = http::ask(service.socket(), "GET", "/v1/vm/config", &[], &[]).json();
        // Each service of a test has a socket of its own.
        let socket = config.as_object_mut().unwrap().remove("socket").unwrap();
        assert_eq!(socket, service.socket().to_str().unwrap());
        (service, config)
    };
    let (service, config) = started(&path);
    let [size, disks, events] = ["memory", "disk", "events"].map(|member| &config[member]);
    let expected = serde_json::json!([{"path": disk, "mode": "overlay"}]);
    assert_eq!((size, disks, events), (&32.into(), &expected, &100.into()), "{config}");
    let status = http::ask(service.socket(), "GET", "/v1/vm", &[], &[]).json();
    assert_eq!((&status["vcpus"], &status["memory_mib"]), (&2.into(), &32.into()));
    let probes = http::ask(service.socket(), "GET", "/v1/probes", &[], &[]).json();
    assert_eq!(probes[0]["event"], "a");
    for (form, name) in
        [(&["vm", "config"][..], "again.toml"), (&["--json", "vm", "config"], "again.json")]
    {
        let printed = service.client(form);
        assert!(printed.status.success());
        let again = dir.path().join(name);
        std::fs::write(&again, printed.stdout).unwrap();
        let (_second, same) = started(&again);
        assert_eq!(same, config, "{name}");
    }
    std::fs::write(&path, "kernel = \"k\"\nmemry = 32\n").unwrap();
    let error = refused(&["--config", path.to_str().unwrap()]);
    assert!(error.contains("unknown field `memry`") && error.contains("machine.toml"), "{error}");
}
