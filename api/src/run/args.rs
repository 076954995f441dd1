//! The arguments of `exoprobe run`, and the service that they ask for.

use std::net::SocketAddr;
use std::path::PathBuf;

use exoprobe_probes::{EventLimits, Limits, ProbeDefinition, parse_line};
use exoprobe_vmm::{
    BootFiles, DEFAULT_KVM, DiskConfig, GUEST_CID, HostSides, MacAddr, NetConfig, VmConfig,
    VsockConfig, with_kernel_words,
};

use super::disk_option;
use super::error::RunError;
use super::jail_option::JailArgs;
use super::net_option::{self, NetOption};
use super::vsock_option::{self, VsockOption};
use crate::machine_file::{DiskEntry, MachineFile, NetEntry, VsockEntry};
use crate::sandbox::seccomp::Seccomp;
use crate::service::{GuestSource, ServiceConfig};
use crate::{default_socket, fast_boot};

/// Kernel command line by default.
const DEFAULT_CMDLINE: &str = "console=ttyS0 quiet";
/// Largest `--events-memory` and `--memory-limit`.
const LIMIT_MIB_MAX: u64 = 1 << 16;

const EXAMPLES: &str = "Examples:
  exoprobe run --kernel vmlinux --initramfs initramfs.cpio --socket /tmp/exoprobe.sock
  exoprobe run --kernel bzImage --memory 512 --vcpus 2 --console
  exoprobe run --kernel /boot/vmlinuz --memory 512 --fast-boot
  exoprobe run --kernel /boot/vmlinuz --memory 8192 --hugepages --vcpus 8
  exoprobe run --kernel vmlinuz --initramfs initrd.img --cmdline 'console=ttyS0 root=/dev/vda1' \\
      --memory 1024 --disk debian.raw,overlay --disk data.raw
  exoprobe run --kernel bzImage --initramfs initrd.img --net unix:/tmp/passt.sock \\
      --cmdline 'console=ttyS0 ip=dhcp'
  exoprobe run --kernel bzImage --initramfs initrd.img --virtio-console \
      --cmdline 'console=ttyS0 console=hvc0'
  exoprobe run --kernel bzImage --initramfs initrd.img --vsock /tmp/v.sock
  exoprobe run --config machine.toml --memory 1024
  exoprobe run --restore /tmp/guest.snap --socket /tmp/second.sock
  exoprobe run --restore /tmp/guest.snap --kernel vmlinux --initramfs initramfs.cpio --reboot
  exoprobe run --kernel vmlinux --probe 'p:begin start_kernel' --probe 'r:init kernel_init_freeable'
  EXOPROBE_TOKEN=... exoprobe run --kernel vmlinux --listen 127.0.0.1:8080
  exoprobe run --kernel vmlinux --initramfs initramfs.cpio --jail /srv/exoprobe/guest1
  sudo exoprobe run --config machine.toml --jail /srv/exoprobe/guest1 --uid 1017 \
      --gid 1017 --cgroup memory.max=2G --rlimit-fsize 4096

Then, from another terminal:
  curl --unix-socket /tmp/exoprobe.sock -d 'p:getpid __x64_sys_getpid' http://exoprobe/v1/probes";

/// Boot a guest and serve the API until SIGINT or SIGTERM.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    /// File with any of these arguments, TOML or (FILE.json) JSON; those on the command line go
    /// before it. `exoprobe vm config` prints the file of a running guest
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Linux kernel to boot: an ELF vmlinux or a bzImage (unpacked by exoprobe where KVM emulates
    /// guest kernels, by itself elsewhere; with KASLR in both cases, unless `nokaslr` is in
    /// --cmdline); with --restore, the kernel to reboot with
    #[arg(long, value_name = "PATH", required_unless_present_any = ["restore", "config"])]
    pub kernel: Option<PathBuf>,
    /// Initial RAM file system
    #[arg(long, value_name = "PATH", requires = "kernel")]
    pub initramfs: Option<PathBuf>,
    /// Kernel command line [default: console=ttyS0 quiet; with --restore, the snapshot's]
    #[arg(long, value_name = "TEXT", requires = "kernel", allow_hyphen_values = true)]
    pub cmdline: Option<String>,
    /// Add words to the kernel command line that leave out what takes long where KVM emulates guest
    /// kernels, and print them: parts of /sys/kernel and /sys/module, and the guest's own tracefs,
    /// are not there then
    #[arg(long, conflicts_with = "restore")]
    pub fast_boot: bool,
    /// RAM in MiB
    #[arg(long, value_name = "MIB", default_value_t = 64, conflicts_with = "restore")]
    pub memory: u64,
    /// Take RAM from the host's huge pages of 2 MiB, all at the start. The host must have them
    /// free: --memory 512 needs 256, `echo 256 > /proc/sys/vm/nr_hugepages` as root. A restored
    /// guest's RAM is mapped from its snapshot and cannot be of huge pages
    #[arg(long, conflicts_with = "restore")]
    pub hugepages: bool,
    /// Lock the guest's memory: the host never writes it to its swap. RLIMIT_MEMLOCK must allow it
    /// (`ulimit -l`)
    #[arg(long)]
    pub mlock: bool,
    /// Number of vCPUs, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "restore")]
    pub vcpus: u8,
    /// Disk, /dev/vda and on: a raw file or a block device, which no other machine may have. With
    /// `readonly` the guest cannot write to it; with `overlay` its writes go to a temporary file
    /// and are thrown away: several machines may share the disk then. May be given several times;
    /// with --restore, the snapshot's disks, in their order
    #[arg(long = "disk", value_name = "FILE[,readonly|overlay]", value_parser = disk_option::parse)]
    pub disks: Vec<DiskConfig>,
    /// Network interface, eth0 and on: `tap:NAME`, a tap interface of this host, or `unix:SOCKET`,
    /// a network stack that needs no root (`passt --socket SOCKET`). Its address is random, unless
    /// `,mac=ADDRESS` gives it. May be given several times; with --restore, the snapshot's network
    /// interfaces, in their order, whose addresses they keep
    #[arg(long = "net", value_name = "tap:NAME|unix:SOCKET[,mac=ADDRESS]", value_parser = net_option::parse)]
    pub nets: Vec<NetOption>,
    /// Give the guest a virtio console, /dev/hvc0, to which `exoprobe vm console --hvc` connects:
    /// its size follows the terminal's. The guest's kernel prints to it with `console=hvc0` in
    /// --cmdline
    #[arg(long, conflicts_with = "restore")]
    pub virtio_console: bool,
    /// Sockets between guest and host (vsock), over unix sockets. A client on the host connects to
    /// SOCKET, writes `CONNECT PORT` and a line feed, and reads `OK PORT` once the guest accepts; a
    /// connection of the guest's to port P of CID 2 goes to the process that listens at SOCKET_P.
    /// The guest's CID is 3, unless `,cid=N` gives it. With --restore, for the snapshot's, which
    /// keeps its CID and has no connections any more
    #[arg(long, value_name = "SOCKET[,cid=N]", value_parser = vsock_option::parse)]
    pub vsock: Option<VsockOption>,
    /// Symbols of the kernel: its vmlinux or System.map [default: those of a vmlinux, or the
    /// kernel's own, read from the guest's memory once it runs]
    #[arg(long, value_name = "PATH")]
    pub symbols: Option<PathBuf>,
    /// Types of the kernel: BTF, as `pahole --btf_encode_detached` makes it, or an ELF file with a
    /// section .BTF [default: the kernel's own (CONFIG_DEBUG_INFO_BTF), read from the guest's
    /// memory, or else KERNEL.btf or vmlinux.btf in the kernel's folder]
    #[arg(long, value_name = "PATH")]
    pub btf: Option<PathBuf>,
    /// ELF file with the kernel's debug information (DWARF), for source lines [default: the
    /// symbols' file, if it has some]
    #[arg(long, value_name = "FILE")]
    pub debug_info: Option<PathBuf>,
    /// Go on from a snapshot in place of booting a kernel. The guest can be rebooted with --kernel
    /// alone: files that a snapshot names are not booted from
    #[arg(long, value_name = "SNAPSHOT")]
    pub restore: Option<PathBuf>,
    /// Unix socket to listen on, for this user only [default: exoprobe.sock in
    /// $XDG_RUNTIME_DIR, or else in /run/user/UID; /tmp/exoprobe-UID.sock without both; with
    /// --jail, DIR/exoprobe.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Loopback address to listen on as well, by TCP; clients then need the token. From another
    /// host they come through a proxy that encrypts (docs/security.md)
    #[arg(long, value_name = "ADDR:PORT", value_parser = loopback)]
    pub listen: Option<SocketAddr>,
    /// File of mode 0600 that holds the token of TCP clients, at least 16 characters [default:
    /// environment variable EXOPROBE_TOKEN]
    #[arg(long, value_name = "PATH", requires = "listen")]
    pub token_file: Option<PathBuf>,
    /// Probe to register before the guest runs its first instruction; may be given several times
    #[arg(long = "probe", value_name = "DEFINITION", value_parser = definition)]
    pub probes: Vec<ProbeDefinition>,
    /// Events kept for readers
    #[arg(long, value_name = "N", default_value_t = EventLimits::DEFAULT_COUNT, value_parser = events_kept)]
    pub events: usize,
    /// Memory for the events kept for readers, in MiB; the oldest go when they take more
    #[arg(long, value_name = "MIB", default_value_t = EventLimits::DEFAULT_MIB as u64, value_parser = clap::value_parser!(u64).range(1..=LIMIT_MIB_MAX))]
    pub events_memory: u64,
    /// Memory that all probes together may take at most, in MiB; a probe beyond is refused (507
    /// over HTTP)
    #[arg(long, value_name = "MIB", default_value_t = Limits::DEFAULT_MIB as u64, value_parser = clap::value_parser!(u64).range(1..=LIMIT_MIB_MAX))]
    pub memory_limit: u64,
    /// KVM device
    #[arg(long, value_name = "PATH", default_value = DEFAULT_KVM, hide_short_help = true)]
    pub kvm: PathBuf,
    /// Do not filter the system calls of the service's threads, for debugging: otherwise a call
    /// that a thread has no use for ends the service with a message and status 148
    #[arg(long)]
    pub no_seccomp: bool,
    /// Print the guest's console to standard output as it comes: serial port 0 (ttyS0), also of a
    /// guest with --virtio-console
    #[arg(long)]
    pub console: bool,
    /// Boot again when the guest resets itself
    #[arg(long)]
    pub reboot: bool,
    /// End when the guest stops; with an error unless it reset itself or was shut down
    #[arg(long)]
    pub exit_with_guest: bool,
    /// The jail.
    #[command(flatten)]
    pub jail: JailArgs,
}

impl RunArgs {
    /// The unix socket to listen on.
    pub(super) fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(default_socket)
    }
}

/// The kernel command line as it was given, with the words of `--fast-boot` if these are wanted.
fn cmdline(args: &RunArgs) -> String {
    let cmdline = args.cmdline.as_deref().unwrap_or(DEFAULT_CMDLINE);
    match args.fast_boot {
        true => with_kernel_words(cmdline, &fast_boot::words()),
        false => cmdline.to_owned(),
    }
}

/// The network interfaces, with an address each.
fn nets(args: &RunArgs) -> std::io::Result<Vec<NetConfig>> {
    let config = |net: &NetOption| {
        let mac = net.mac.map_or_else(MacAddr::random, Ok)?;
        Ok(NetConfig { link: net.link.clone(), mac })
    };
    args.nets.iter().map(config).collect()
}

fn vsock(option: &VsockOption) -> VsockConfig {
    let cid = option.cid.unwrap_or(GUEST_CID);
    VsockConfig { socket: option.socket.clone(), cid }
}

/// The service that the arguments ask for, whose threads have no filters yet.
pub(super) fn service_config(args: &RunArgs) -> Result<ServiceConfig, RunError> {
    let nets = nets(args)?;
    // Absolute, because a snapshot has them, too.
    let absolute = |path: &PathBuf| std::path::absolute(path);
    let kernel = args.kernel.as_ref().map(absolute).transpose()?;
    let initramfs = args.initramfs.as_ref().map(absolute).transpose()?;
    let source = match &args.restore {
        Some(path) => {
            let files = |kernel| BootFiles { kernel, initramfs, cmdline: args.cmdline.clone() };
            if let Some(mac) = args.nets.iter().find_map(|net| net.mac) {
                return Err(RunError::KeptMac(mac));
            }
            if let Some(cid) = args.vsock.as_ref().and_then(|vsock| vsock.cid) {
                return Err(RunError::KeptCid(cid));
            }
            let links = args.nets.iter().map(|net| net.link.clone()).collect();
            let vsock = args.vsock.as_ref().map(|vsock| vsock.socket.clone());
            let (boot_files, sides) =
                (kernel.map(files), HostSides { disks: args.disks.clone(), links, vsock });
            GuestSource::Restore { path: path.clone(), boot_files, sides }
        }
        None => GuestSource::Boot(VmConfig {
            kernel: kernel.unwrap_or_default(),
            initramfs,
            cmdline: cmdline(args),
            memory_mib: args.memory,
            hugepages: args.hugepages,
            vcpus: args.vcpus,
            disks: args.disks.clone(),
            nets: nets.clone(),
            virtio_console: args.virtio_console,
            vsock: args.vsock.as_ref().map(vsock),
        }),
    };
    let bytes = |mib: u64| usize::try_from(mib << 20).unwrap_or(usize::MAX);
    let events = EventLimits { count: args.events, bytes: bytes(args.events_memory) };
    Ok(ServiceConfig {
        source,
        symbols: args.symbols.clone(),
        types: args.btf.clone(),
        debug_info: args.debug_info.clone(),
        kvm: args.kvm.clone(),
        mlock: args.mlock,
        seccomp: Seccomp::off(),
        probes: args.probes.clone(),
        limits: Limits { events, memory: bytes(args.memory_limit) },
        file: machine_file(args, &nets)?,
    })
}

/// The file of a machine that was started with these arguments; its paths are absolute.
fn machine_file(args: &RunArgs, nets: &[NetConfig]) -> std::io::Result<MachineFile> {
    let some = |path: &Option<PathBuf>| path.as_ref().map(std::path::absolute).transpose();
    let boots = args.restore.is_none();
    let disk = args.disks.iter();
    Ok(MachineFile {
        kernel: some(&args.kernel)?,
        initramfs: some(&args.initramfs)?,
        cmdline: args.cmdline.clone(),
        fast_boot: args.fast_boot,
        memory: boots.then_some(args.memory),
        hugepages: args.hugepages,
        mlock: args.mlock,
        vcpus: boots.then_some(args.vcpus),
        disk: disk.map(|it| DiskEntry { path: it.path.clone(), mode: it.mode }).collect(),
        net: nets.iter().map(|net| NetEntry::new(&net.link, boots.then_some(net.mac))).collect(),
        virtio_console: args.virtio_console,
        vsock: args
            .vsock
            .as_ref()
            .map(vsock)
            .map(|it| VsockEntry { socket: it.socket, cid: boots.then_some(it.cid) }),
        symbols: some(&args.symbols)?,
        btf: some(&args.btf)?,
        debug_info: some(&args.debug_info)?,
        restore: some(&args.restore)?,
        socket: Some(std::path::absolute(args.socket())?),
        listen: args.listen,
        token_file: some(&args.token_file)?,
        probe: args.probes.iter().map(ToString::to_string).collect(),
        events: Some(args.events),
        events_memory: Some(args.events_memory),
        memory_limit: Some(args.memory_limit),
        kvm: Some(std::path::absolute(&args.kvm)?),
        no_seccomp: args.no_seccomp,
        console: args.console,
        reboot: args.reboot,
        exit_with_guest: args.exit_with_guest,
        jail: some(&args.jail.jail)?,
        jail_with: args.jail.jail.is_some().then(|| args.jail.jail_with.name().to_owned()),
        uid: args.jail.uid,
        gid: args.jail.gid,
        allow_root: args.jail.allow_root,
        rlimit_nofile: args.jail.rlimit_nofile,
        rlimit_fsize: args.jail.rlimit_fsize,
        cgroup: args.jail.cgroup.iter().map(ToString::to_string).collect(),
    })
}

/// Reads an address of this host's alone: TCP is not encrypted.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|_| "give ADDRESS:PORT".to_owned())?;
    match address.ip().to_canonical().is_loopback() {
        true => Ok(address),
        false => Err(format!(
            "{} is no loopback address, and TCP is not encrypted: listen on 127.0.0.1:{port}, and let clients come by \
             `ssh -L {port}:127.0.0.1:{port}` or through a proxy with TLS (stunnel, in docs/security.md)",
            address.ip(),
            port = address.port(),
        )),
    }
}

/// Reads a line of kprobe_events; an error has a caret under what is wrong.
fn definition(line: &str) -> Result<ProbeDefinition, String> {
    parse_line(line).map_err(|error| {
        let column = line.chars().take(error.position).count();
        format!("{error}\n  {line}\n  {:column$}^", "")
    })
}

/// Reads the number of events to keep: some, and no more than fit a few GiB.
fn events_kept(text: &str) -> Result<usize, String> {
    const MOST: usize = 1 << 23;
    match text.parse() {
        Ok(number @ 1..=MOST) => Ok(number),
        _ => Err(format!("give 1 to {MOST}")),
    }
}
