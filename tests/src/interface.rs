//! Network interfaces of the calling thread's namespace, without `ip`, which the lab does not have
//! (netdevice(7); Linux, Documentation/networking/tuntap.rst).

use std::fs::OpenOptions;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;

use libc::ifreq;

/// linux/if_tun.h; the constants are not in libc's crate.
const TUNSETIFF: libc::Ioctl = libc::_IOW::<libc::c_int>(b'T' as u32, 202);
const TUNSETPERSIST: libc::Ioctl = libc::_IOW::<libc::c_int>(b'T' as u32, 203);

/// An interface that exists.
#[derive(Debug)]
pub struct Interface(ifreq);

impl Interface {
    /// The one of 127.0.0.1.
    #[must_use]
    pub fn loopback() -> Self {
        Self::named("lo")
    }

    /// Makes a tap interface, which stays until its namespace is gone.
    ///
    /// # Errors
    /// Those of `/dev/net/tun`.
    pub fn tap(name: &str) -> io::Result<Self> {
        let mut tap = Self::named(name);
        let device = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
        tap.0.ifr_ifru.ifru_flags = flags(libc::IFF_TAP | libc::IFF_NO_PI);
        tap.request(&device, TUNSETIFF)?;
        // SAFETY: TUNSETPERSIST takes a number and no memory.
        check(unsafe { libc::ioctl(device.as_raw_fd(), TUNSETPERSIST, 1) })?;
        Ok(tap)
    }

    /// Gives it an address in a network of 256.
    ///
    /// # Errors
    /// Those of the ioctls SIOCSIFADDR and SIOCSIFNETMASK.
    pub fn set_address(&mut self, address: Ipv4Addr) -> io::Result<()> {
        let any_socket = UdpSocket::bind("0.0.0.0:0")?;
        self.0.ifr_ifru.ifru_addr = socket_address(address);
        self.request(&any_socket, libc::SIOCSIFADDR)?;
        self.0.ifr_ifru.ifru_netmask = socket_address(Ipv4Addr::new(255, 255, 255, 0));
        self.request(&any_socket, libc::SIOCSIFNETMASK)
    }

    /// Brings it up, as `ip link set NAME up` does.
    ///
    /// # Errors
    /// Those of the ioctl SIOCSIFFLAGS.
    pub fn bring_up(&mut self) -> io::Result<()> {
        self.0.ifr_ifru.ifru_flags = flags(libc::IFF_UP | libc::IFF_RUNNING);
        self.request(&UdpSocket::bind("0.0.0.0:0")?, libc::SIOCSIFFLAGS)
    }

    /// The request of an interface; a name is at most 15 bytes long.
    fn named(name: &str) -> Self {
        assert!(name.len() < libc::IFNAMSIZ, "{name}");
        // SAFETY: all zeros is a valid `ifreq`, a plain C structure.
        let mut request: ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from.cast_signed();
        }
        Self(request)
    }

    fn request(&mut self, file: &impl AsRawFd, request: libc::Ioctl) -> io::Result<()> {
        // SAFETY: each request of this file reads and writes one `ifreq`, which lives across the
        // call and has a name that ends in NUL.
        check(unsafe { libc::ioctl(file.as_raw_fd(), request, &raw mut self.0) })
    }
}

fn flags(bits: libc::c_int) -> libc::c_short {
    bits.try_into().expect("low bits")
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A `struct sockaddr_in`, which is as long as a `struct sockaddr`.
fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    let mut data = [0; 14];
    for (to, from) in data[2..].iter_mut().zip(address.octets()) {
        *to = from.cast_signed();
    }
    let family = libc::AF_INET.try_into().expect("a small number");
    libc::sockaddr { sa_family: family, sa_data: data }
}
