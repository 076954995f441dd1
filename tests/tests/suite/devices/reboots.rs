//! A guest with disks, a network interface, a vsock device and a virtio console: its kernel's
//! drivers start anew after a reboot. One boot and one reboot are for all of them.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;

use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestGuest, cases};
use exoprobe_vmm::{TerminalSize, VmConfig};

use super::console::{check_echo, console};
use super::disks::Disks;
use super::net::{Peer, TIMES};
use super::vsock::{GUEST, connect, echo, echo_server, send};
use crate::support::devices::{boot, config, net, vsock};

pub(crate) const CASES: &[Case] = cases![each_device_goes_on(vcpus) needs [Kvm, QuickKernel]];

const SIZE: TerminalSize = TerminalSize { columns: 100, rows: 30 };

fn each_device_goes_on(vcpus: u8) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("v");
    let disks = Disks::new(dir.path());
    echo_server(&socket);
    let peer = Peer::listen(dir.path().join("peer"));
    let guest = boot(&VmConfig {
        disks: disks.configs(),
        nets: vec![net(peer.link())],
        virtio_console: true,
        vsock: Some(vsock(&socket)),
        ..config(vcpus)
    });
    disks.check(&guest);
    console(&guest).set_size(SIZE);
    let mut open = open_stream(&guest, &socket);
    // Nothing takes this before the reboot, and nothing gets it after.
    guest.vm.pause().unwrap();
    console(&guest).send(&[b'y'; 65_536]).unwrap();
    guest.reboot();

    assert_eq!(open.read(&mut [0; 1]).unwrap(), 0, "it went with the guest's kernel");
    send(&guest);
    echo(&guest, &socket);
    assert_eq!(guest.work("winsize /dev/hvc0 100"), 30);
    check_echo(&guest, b"again");
    assert_eq!(guest.work(&format!("udp 10.0.2.2:7 {TIMES}")), TIMES);
    assert_eq!(guest.vm.links_up(), [true]);
    disks.check_kept(&guest);
    guest.assert_unharmed();
    drop(guest);
    assert!(!socket.exists());
}

/// A connection to a program of the guest's, the only one.
fn open_stream(guest: &TestGuest, socket: &Path) -> UnixStream {
    let _echo = guest.send(&format!("vsock-echo {GUEST}"));
    let stream = connect(socket, GUEST);
    assert_eq!(guest.vm.vsock_connections(), Some(1));
    stream
}
