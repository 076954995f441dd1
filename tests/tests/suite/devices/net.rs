//! Network interfaces: datagrams of the guest reach a peer on the host, and come back.

use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use exoprobe_tests::harness::Case;
use exoprobe_tests::{PATIENCE, Service, TestGuest, TestKernel, cases, host, http};
use exoprobe_vmm::{HostSides, NetLink, Vm, VmConfig};

use crate::support::devices::{MAC, Sides, net, start};
use crate::support::network::in_own_namespace;
use crate::support::refused::refused;

pub(crate) const CASES: &[Case] = cases![
    datagrams_come_back_over_a_socket(vcpus) needs [Kvm, QuickKernel],
    a_guest_whose_link_was_down_has_it_up_once_restored,
    a_restored_guest_goes_on_with_another_peer,
    datagrams_come_back_through_passt needs [Passt, Repeat],
    datagrams_come_back_over_a_tap_interface needs [Tap, Iproute2, Repeat],
    a_network_interface_that_cannot_be_made_is_refused_by_name needs [Kvm, Repeat],
];

pub(super) const TIMES: u64 = 50;
/// Longest wait for one datagram, which a guest that is emulated sends.
const QUIET: Duration = Duration::from_secs(120);

/// A guest right after boot, with this host side of its network interface.
fn guest(dir: &Path, link: NetLink, vcpus: u8) -> TestGuest {
    Sides { link, ..Sides::new(dir, vcpus) }.guest(vcpus)
}

/// A network stack that answers for each address, and sends each UDP datagram back. It ends with
/// one to the port `discard`.
pub(super) struct Peer(PathBuf);

impl Peer {
    /// Listens for one machine.
    pub(super) fn listen(path: PathBuf) -> Self {
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            // It ends with the machine.
            drop(answer(stream));
        });
        Self(path)
    }

    pub(super) fn link(&self) -> NetLink {
        NetLink::Socket(self.0.clone())
    }
}

fn answer(mut stream: UnixStream) -> std::io::Result<()> {
    loop {
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut frame)?;
        if is_end(&frame) {
            return Ok(());
        }
        if let Some(reply) = reply(&frame) {
            stream.write_all(&[&length[..], &reply].concat())?;
        }
    }
}

/// Returns true for a datagram to the port `discard`.
fn is_end(frame: &[u8]) -> bool {
    frame[12..14] == [8, 0] && frame[36..38] == [0, 9]
}

/// The reply to a frame, of the same length.
fn reply(frame: &[u8]) -> Option<Vec<u8>> {
    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
    let mut reply = frame.to_vec();
    reply[..6].copy_from_slice(&frame[6..12]);
    reply[6..12].copy_from_slice(&OWN);
    let mut swap = |a: usize, b: usize, len: usize| {
        reply[a..a + len].copy_from_slice(&frame[b..b + len]);
        reply[b..b + len].copy_from_slice(&frame[a..a + len]);
    };
    match frame[12..14] {
        // ARP: who has the target's address? This one.
        [8, 6] if frame[20..22] == [0, 1] => {
            swap(28, 38, 4);
            reply[32..38].copy_from_slice(&frame[22..28]);
            reply[20..22].copy_from_slice(&[0, 2]);
            reply[22..28].copy_from_slice(&OWN);
        }
        // UDP over IPv4: no checksum changes when both ends change places.
        [8, 0] if frame[23] == 17 => {
            swap(26, 30, 4);
            swap(34, 36, 2);
        }
        _ => return None,
    }
    Some(reply)
}

fn datagrams_come_back_over_a_socket(vcpus: u8) {
    let dir = tempfile::tempdir().unwrap();
    let peer = Peer::listen(dir.path().join("peer"));
    let guest = guest(dir.path(), peer.link(), vcpus);
    guest.probe("p:sent udp_sendmsg");
    guest.probe("p:given start_xmit");
    assert_eq!(guest.work(&format!("udp 10.0.2.2:7 {TIMES}")), TIMES);
    assert_eq!(guest.hits("sent"), TIMES);
    assert!(guest.hits("given") >= TIMES, "the driver's, with ARP");
    assert_eq!(guest.work(&format!("par 2 udp 10.0.2.9:7 {TIMES}")), 2 * TIMES);
    assert_eq!(guest.hits("sent"), 3 * TIMES);
    guest.engine.unregister(exoprobe_probes::Selection::all()).unwrap();
    guest.assert_unharmed();
    assert_eq!(guest.vm.links_up(), [true]);
    guest.probe("p:down netif_carrier_off");
    let _ = guest.send("udp 10.0.2.2:9 1");
    guest.wait_until("it knows that its link is down", |guest| guest.hits("down") > 0);
    assert_eq!(guest.vm.links_up(), [false]);
}

fn a_restored_guest_goes_on_with_another_peer() {
    let dir = tempfile::tempdir().unwrap();
    let snapshot = dir.path().join("snapshot");
    let first = Peer::listen(dir.path().join("first")).link();
    let sides = Sides { link: first, ..Sides::new(dir.path(), 1) };
    let guest = sides.guest(1);
    assert_eq!(guest.work("udp 10.0.2.2:7 5"), 5);
    guest.vm.pause().unwrap();
    guest.vm.snapshot(&snapshot).unwrap();
    drop(guest);
    let second = Peer::listen(dir.path().join("second"));
    let restore =
        |links: Vec<NetLink>| Vm::restore(host(), &snapshot, &HostSides { links, ..sides.given() });
    let refused = restore(Vec::new()).map(drop).unwrap_err().to_string();
    assert!(refused.contains("give each again with --net"), "{refused}");
    assert!(refused.contains("first"), "{refused}");
    let twin = start(restore(vec![second.link()]).unwrap());
    assert_eq!(twin.vm.config().nets, [net(second.link())], "the address is as it was");
    assert_eq!(twin.work(&format!("udp 10.0.2.2:7 {TIMES}")), TIMES);
    twin.assert_unharmed();
}

/// The driver of a snapshot hears that the link is another one's, and up.
fn a_guest_whose_link_was_down_has_it_up_once_restored() {
    let dir = tempfile::tempdir().unwrap();
    let snapshot = dir.path().join("snapshot");
    let first = Peer::listen(dir.path().join("first")).link();
    let sides = Sides { link: first, ..Sides::new(dir.path(), 1) };
    let guest = sides.guest(1);
    guest.probe("p:down netif_carrier_off");
    let _ = guest.send("udp 10.0.2.2:9 1");
    guest.wait_until("it knows that its link is down", |guest| guest.hits("down") > 0);
    guest.engine.unregister(exoprobe_probes::Selection::all()).unwrap();
    guest.vm.pause().unwrap();
    guest.vm.snapshot(&snapshot).unwrap();
    drop(guest);
    let second = Peer::listen(dir.path().join("second")).link();
    let twin = TestGuest::of_kernel(Sides { link: second, ..sides }.restore(&snapshot), None);
    twin.probe("p:up netif_carrier_on");
    twin.power_on();
    twin.wait_until("it knows that its link is up", |twin| twin.hits("up") > 0);
    assert_eq!((twin.hits("up"), twin.vm.links_up()), (1, vec![true]));
}

/// Sends datagrams back, until none comes for a while. Returns its port.
fn echo_server(address: &str) -> u16 {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    socket.set_read_timeout(Some(QUIET)).unwrap();
    let port = socket.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut datagram = [0; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut datagram) {
            socket.send_to(&datagram[..len], from).unwrap();
        }
    });
    port
}

/// A process that ends with its test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts passt, in the foreground, and waits for its socket. Started by root, it becomes another
/// user before it makes that.
fn passt(socket: &Path) -> Ended {
    let folder = socket.parent().unwrap();
    std::fs::set_permissions(folder, Permissions::from_mode(0o777)).unwrap();
    let mut passt = Command::new("passt");
    passt.args(["--foreground", "--quiet", "--address", "10.0.2.15", "--gateway", "10.0.2.2"]);
    passt
        .args(["--netmask", "24", "--ipv4-only", "--socket"])
        .arg(socket)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let mut passt = Ended(passt.spawn().unwrap());
    let deadline = Instant::now() + PATIENCE;
    while !socket.exists() {
        let ended = passt.0.try_wait().unwrap();
        assert!(ended.is_none() && Instant::now() < deadline, "no socket of passt: {ended:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    passt
}

/// A user-mode network stack that Debian ships. It maps the gateway's address to this host.
fn datagrams_come_back_through_passt() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("passt");
    let _passt = passt(&socket);
    let port = echo_server("127.0.0.1");
    let guest = guest(dir.path(), NetLink::Socket(socket), 1);
    assert_eq!(guest.work(&format!("udp 10.0.2.2:{port} {TIMES}")), TIMES);
    guest.assert_unharmed();
}

fn ip(words: &str) {
    let run = Command::new("ip").args(words.split(' ')).status().unwrap();
    assert!(run.success(), "ip {words}");
}

fn datagrams_come_back_over_a_tap_interface() {
    in_own_namespace(over_a_tap_interface);
}

fn over_a_tap_interface() {
    for words in ["tuntap add tap0 mode tap", "addr add 10.0.2.2/24 dev tap0", "link set tap0 up"] {
        ip(words);
    }
    let port = echo_server("10.0.2.2");
    let tap = NetLink::Tap("tap0".to_owned());
    let dir = tempfile::tempdir().unwrap();
    let guest = guest(dir.path(), tap, 1);
    assert_eq!(guest.work(&format!("udp 10.0.2.2:{port} {TIMES}")), TIMES);
    let create = |name: &str| {
        let nets = vec![net(NetLink::Tap(name.to_owned()))];
        let config = VmConfig { nets, ..TestKernel::Linux6_12.config(1) };
        Vm::create(host(), &config).map(drop).unwrap_err().to_string()
    };
    assert_eq!(create("tap0"), "tap tap0: in use by another virtual machine or program");
    assert!(create("lo").starts_with("tap lo: an interface, but no tap"), "{}", create("lo"));
    ip("link del tap0");
    guest.wait_until("its link is down", |guest| guest.vm.links_up() == [false]);
    assert_eq!(guest.work("ping"), 1);
}

fn a_network_interface_that_cannot_be_made_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let peer = Peer::listen(dir.path().join("peer"));
    let link = peer.link().to_string();
    let files = Service::boot_files();
    let with = |nets: &[&str]| {
        let files = files.iter().map(String::as_str);
        let nets = nets.iter().flat_map(|net| ["--net", net]);
        files.chain(nets).map(str::to_owned).collect::<Vec<_>>()
    };
    let refused = |nets: &[&str]| {
        let args = with(nets);
        refused(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let many = vec!["tap:none"; 31];
    for (nets, reason) in [
        (&["unix:/nonexistent/passt"][..], "network socket /nonexistent/passt: No such file"),
        (&["tap:exoprobe-none"], "tap exoprobe-none: no such interface; `ip tuntap add"),
        (&["tap0"], "`tap0` is no host side of a network interface: give tap:NAME or unix:SOCKET"),
        (&[&format!("{link},mac=1")], "`1` is no MAC address"),
        (&[&link, &link], "is given for two network interfaces"),
        (&many, "31 disks, network interfaces, vsock devices and virtio consoles: give at most 30"),
    ] {
        let error = refused(nets);
        assert!(error.contains(reason), "{nets:?}: {error}");
    }
    let args = with(&[&format!("{link},mac={MAC}")]);
    let service = Service::start(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let status = http::ask(service.socket(), "GET", "/v1/vm", &[], &[]).json();
    assert_eq!(status["nets"], serde_json::json!([{"link": link, "mac": MAC, "up": true}]));
    let file = http::ask(service.socket(), "GET", "/v1/vm/config", &[], &[]).json();
    let socket = dir.path().join("peer");
    assert_eq!(file["net"], serde_json::json!([{"socket": socket, "mac": MAC}]));
}
