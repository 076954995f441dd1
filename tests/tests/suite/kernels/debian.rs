//! A whole distribution: its disk, kernel and initramfs, with systemd and a network.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use exoprobe_tests::harness::Case;
use exoprobe_tests::{Interface, PATIENCE, Service, cases, debian_disk, guest_file};
use serde_json::Value;

use crate::support::network::in_own_namespace;
use crate::support::terminal::Terminal;

pub(crate) const CASES: &[Case] = cases![
    debian_boots_to_its_login_prompt_and_its_programs_are_probed needs [DebianImage, HardwareKvm, Tap],
];

const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const PORT: u16 = 80;
const TAP: &str = "tap0";
/// The guest's address, its gateway, and its name; systemd-network-generator reads them.
const ADDRESS: &str = "ip=10.0.2.15::10.0.2.2:255.255.255.0:debian::off";
/// Reads of the disk by `dd`, past the kernel's cache.
const READS: u64 = 256;
const DOWNLOADS: u64 = 3;

fn debian_boots_to_its_login_prompt_and_its_programs_are_probed() {
    in_own_namespace(boot_and_probe);
}

fn boot_and_probe() {
    let mut tap = Interface::tap(TAP).unwrap();
    tap.set_address(HOST).unwrap();
    tap.bring_up().unwrap();
    let downloads = serve();
    let service = start();
    let mut terminal = Terminal::new(&service);
    terminal.wait_for("debian login: ");
    assert_eq!(hits(&service, "kernel"), 1);
    let started = service.events(&["--probe", "programs"]);
    let programs: Vec<_> = started.iter().filter_map(|e| e["args"]["file"].as_str()).collect();
    println!("{} programs were started before the prompt", programs.len());
    // One of the initramfs, and one of the disk.
    for program in ["/init", "/lib/systemd/systemd-journald"] {
        assert!(programs.contains(&program), "{program}: {programs:?}");
    }
    let tasks = service.ok(&["ps"]);
    assert!(tasks.contains("systemd-journal") && tasks.contains("agetty"), "{tasks}");
    terminal.type_line("root");
    terminal.wait_for("root@debian:~#");
    for probe in PROBES {
        let _ = service.ok(&["probe", "add", probe]);
    }
    files_that_apt_reads(&service, &mut terminal);
    requests_of_dd(&service, &mut terminal);
    connections_of_curl(&service, &mut terminal, &downloads);
    println!("{}", service.ok(&["probe", "list"]));
    let _ = service.ok(&["probe", "rm", "--all"]);
    let errors = terminal.run("dmesg --level emerg,alert,crit,err");
    assert!(!errors.contains("BUG") && !errors.contains("Oops"), "{errors}");
    shuts_itself_down(&service, &mut terminal);
}

/// At its power button, by ACPI.
fn shuts_itself_down(service: &Service, terminal: &mut Terminal<'_>) {
    let _ = service.ok(&["vm", "power-button"]);
    terminal.wait_for("reboot: Power down");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = service.ok(&["--json", "vm", "status"]);
        let status: Value = serde_json::from_str(&status).expect("a status");
        if status["state"] == "stopped" {
            assert_eq!(status["stopped"]["reason"], "powered_off", "{status}");
            return;
        }
        assert!(Instant::now() < deadline, "{status}");
    }
}

/// Starts Debian as a user does, with probes from before power-on. Its disk stays as it is.
fn start() -> Service {
    let text = |path: std::path::PathBuf| path.into_os_string().into_string().unwrap();
    let kernel = text(guest_file("debian/vmlinuz"));
    let initramfs = text(guest_file("debian/initrd.img"));
    let disk = format!("{},overlay", text(debian_disk()));
    let cmdline = format!("console=ttyS0 root=/dev/vda rw {ADDRESS}");
    let net = format!("tap:{TAP}");
    Service::start(
        &[
            &["--kernel", &kernel, "--initramfs", &initramfs, "--cmdline", &cmdline][..],
            &["--memory", "512", "--disk", &disk, "--net", &net],
            &["--probe", "p:kernel start_kernel"],
            &["--probe", "p:programs begin_new_exec file=bprm->filename:string"],
        ]
        .concat(),
    )
}

/// Answers HTTP requests on [`HOST`]. Returns how many it has answered.
fn serve() -> Arc<AtomicU64> {
    let listener = TcpListener::bind((HOST, PORT)).unwrap();
    let answered = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&answered);
    // It ends with the process: nothing waits for it.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            answer(&stream.unwrap()).unwrap();
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    answered
}

fn answer(mut stream: &TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
    stream.write_all(b"HTTP/1.0 200 OK\r\ncontent-length: 15\r\n\r\nfrom your host\n")
}

/// Reads, with the names of the files, and connections, with the peers.
const PROBES: [&str; 2] = [
    r#"p:reads vfs_read file=file:%pD count=count if comm == "apt" || comm == "dd" || comm == "curl""#,
    "p:connects tcp_connect to=sk->__sk_common.skc_daddr:x32 port=sk->__sk_common.skc_dport:x16",
];

/// Requests that read (REQ_OP_READ is 0 of the low 8 bits), with the names of the disks.
const REQUESTS: &str = "p:requests blk_mq_start_request disk=rq->q->disk->disk_name:string \
                        op=rq->cmd_flags:u32 bytes=rq->__data_len:u32 if !(op & 255)";

fn files_that_apt_reads(service: &Service, terminal: &mut Terminal<'_>) {
    let packages = terminal.run("apt list 2>/dev/null | grep --count /");
    let packages: usize = packages.split_whitespace().find_map(|word| word.parse().ok()).unwrap();
    assert!(packages > 100, "{packages}");
    show(service, "reads", &["--comm", "apt"]);
    let reads = service.events(&["--probe", "reads", "--comm", "apt"]);
    let files: Vec<&str> = reads.iter().filter_map(|read| read["args"]["file"].as_str()).collect();
    assert!(files.contains(&"status"), "/var/lib/dpkg/status is read: {files:?}");
}

fn requests_of_dd(service: &Service, terminal: &mut Terminal<'_>) {
    // The disk's own count of requests that it has read (Documentation/block/stat.rst).
    let count = "read -r reads rest </sys/block/vda/stat; echo \"reads $reads.\"";
    let counted = |said: &str| -> u64 {
        let (_, number) = said.rsplit_once("reads ").expect("it is printed");
        number.split('.').next().unwrap().parse().unwrap()
    };
    let before = counted(&terminal.run(count));
    let _ = service.ok(&["probe", "add", REQUESTS]);
    let dd = format!("dd if=/dev/vda of=/dev/null bs=4k count={READS} iflag=direct");
    let said = terminal.run(&format!("{dd}; {count}"));
    assert!(said.contains(&format!("{READS}+0 records in")), "{said}");
    show(service, "reads", &["--comm", "dd"]);
    show(service, "requests", &[]);
    let of_disk = |event: &&Value| event["args"]["file"] == "vda" && event["args"]["count"] == 4096;
    let reads = service.events(&["--probe", "reads", "--comm", "dd"]);
    assert_eq!(reads.iter().filter(of_disk).count() as u64, READS);
    let requests = service.events(&["--probe", "requests"]);
    assert!(requests.iter().all(|request| request["args"]["disk"] == "vda"), "{requests:?}");
    assert_eq!(requests.len() as u64, counted(&said) - before, "as the disk counts them");
}

fn connections_of_curl(service: &Service, terminal: &mut Terminal<'_>, downloads: &AtomicU64) {
    let said =
        terminal.run(&format!("for i in $(seq {DOWNLOADS}); do curl -s http://{HOST}/; done"));
    assert_eq!(said.matches("from your host").count() as u64, DOWNLOADS, "{said}");
    assert_eq!(downloads.load(Ordering::SeqCst), DOWNLOADS);
    show(service, "connects", &[]);
    let connects = service.events(&["--probe", "connects"]);
    assert_eq!(connects.len() as u64, DOWNLOADS);
    assert_eq!(hits(service, "connects"), DOWNLOADS);
    let to = format!("{:#x}", u32::from_ne_bytes(HOST.octets()));
    let port = format!("{:#x}", PORT.to_be());
    for connect in &connects {
        let (args, comm) = (&connect["args"], &connect["comm"]);
        assert_eq!((comm, &args["to"]), (&"curl".into(), &to.as_str().into()), "{connect}");
        assert_eq!(args["port"], port.as_str(), "{connect}");
    }
}

/// Prints the newest events of a probe, as a user sees them.
fn show(service: &Service, probe: &str, filter: &[&str]) {
    let of = [&["events", "--last", "3", "--probe", probe], filter].concat();
    println!("$ exoprobe {}\n{}", of.join(" "), service.ok(&of));
}

fn hits(service: &Service, probe: &str) -> u64 {
    let status = service.ok(&["--json", "probe", "show", probe]);
    let status: Value = serde_json::from_str(&status).expect("a probe");
    status["hits"].as_u64().expect("a number")
}
