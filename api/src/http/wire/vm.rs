//! The guest.

use std::path::PathBuf;

use exoprobe_guest::{Registers, kvm_regs};
use exoprobe_probes::Engine;
use exoprobe_vmm::{
    DiskConfig, DiskMode, ExitCounts, MacAddr, NetConfig, StopReason, StopRecord, Vm, VmState,
    VsockConfig,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Hex;
use super::console::ConsoleStatus;

/// The guest's state now.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct VmStatus {
    /// Its action.
    pub state: State,
    /// Why it runs no more; null while it may.
    pub stopped: Option<Stopped>,
    /// vCPUs that are in the middle of a hit, whose probe paused the guest there; resuming it lets
    /// them go on.
    pub held: Vec<u8>,
    /// The probes that hold them, by vCPU.
    pub held_by: Vec<HeldBy>,
    /// Boots of this guest, the present one included: 1 at first, also from a snapshot.
    pub boots: u64,
    /// Number of vCPUs.
    pub vcpus: u8,
    /// RAM in MiB.
    pub memory_mib: u64,
    /// The kernel's file.
    #[schema(value_type = String)]
    pub kernel: PathBuf,
    /// Its disks, `/dev/vda` and on.
    pub disks: Vec<DiskStatus>,
    /// Its network interfaces, `eth0` and on.
    pub nets: Vec<NetStatus>,
    /// The virtio console; null if the guest has none.
    pub virtio_console: Option<ConsoleStatus>,
    /// Its sockets to the host; null without them.
    pub vsock: Option<VsockStatus>,
    /// Version text of the running kernel (`linux_banner`); null until it runs and something about
    /// it was asked, or a probe was registered.
    #[schema(example = "Linux version 6.1.0-56-cloud-amd64 (...) #1 SMP ...")]
    pub banner: Option<String>,
    /// By how many bytes KASLR moved the running kernel, as it notes it down for dumps
    /// (vmcoreinfo); null as `banner`, and of kernels that cannot be dumped.
    pub kernel_offset: Option<Hex>,
    /// The snapshot that is being written, until its file is there or it has failed; null while
    /// there is none. The guest stands still until all is written.
    pub snapshot: Option<SnapshotStatus>,
    /// Guest seconds since power-on.
    pub seconds: f64,
    /// Exits of all vCPUs to user space so far.
    pub exits: Exits,
    /// Where hidden memory is mapped in the guest; null before it is.
    pub hidden: Option<Hex>,
    /// The longest time for which the probe engine has stopped all vCPUs, in nanoseconds, since the
    /// service started.
    pub longest_stop_ns: u64,
}

/// A disk of the guest.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct DiskStatus {
    /// Its file on the host.
    #[schema(value_type = String)]
    pub path: PathBuf,
    /// `readwrite`; `readonly`; `overlay`: what the guest writes is thrown away.
    #[schema(value_type = String, example = "readwrite")]
    pub mode: DiskMode,
}

/// A network interface of the guest.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct NetStatus {
    /// The host's side: `tap:NAME` or `unix:SOCKET`.
    #[schema(example = "tap:tap0")]
    pub link: String,
    /// The address in the guest.
    #[schema(value_type = String, example = "52:54:00:12:34:56")]
    pub mac: MacAddr,
    /// Whether the host's side is still there: not once passt has ended, or the tap is deleted.
    pub up: bool,
}

/// The vsock device of the guest.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct VsockStatus {
    /// The unix socket by which the host's processes connect to the guest.
    #[schema(value_type = String, example = "/tmp/v.sock")]
    pub socket: PathBuf,
    /// The guest's CID.
    pub cid: u32,
    /// Connections now, and clients of the host that have not asked for one yet.
    pub connections: usize,
}

/// A snapshot that is being written.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct SnapshotStatus {
    /// Bytes of memory written so far.
    pub written: u64,
    /// Bytes of memory to write.
    pub size: u64,
}

/// A probe whose action `stop` holds the guest.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct HeldBy {
    /// The vCPU in the middle of the hit.
    pub vcpu: u8,
    /// The probe, as `GROUP/EVENT`. It may have been deleted since.
    pub probe: String,
    /// The address probed.
    pub addr: Hex,
}

/// Exits to user space, by kind.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct Exits {
    /// All kinds together.
    pub total: u64,
    /// int3s, a probe's or the guest's own.
    pub breakpoint: u64,
    /// Single steps.
    pub step: u64,
    /// Port reads and writes.
    pub port: u64,
    /// Reads and writes of guest-physical addresses without memory.
    pub mmio: u64,
    /// Filtered writes of model-specific registers.
    pub msr: u64,
    /// The vCPU was taken out of the guest, or waits for the start-up message of an application
    /// processor.
    pub interrupted: u64,
    /// All others.
    pub other: u64,
}

/// State of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Made and not started.
    Created,
    /// Its vCPUs run.
    Running,
    /// Its vCPUs wait to be resumed.
    Paused,
    /// Until it is booted again.
    Stopped,
}

/// Why and how a guest stopped.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Stopped {
    /// Kind of reason.
    pub reason: Reason,
    /// The kernel's panic message, or what failed.
    pub message: Option<String>,
    /// vCPU that stopped it.
    pub vcpu: u8,
    /// Guest seconds since power-on.
    pub seconds: f64,
    /// That vCPU's registers then.
    pub regs: Regs,
}

/// Kind of reason to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The guest rebooted.
    Reset,
    /// The guest switched its machine off.
    PoweredOff,
    /// The guest powered itself off, and without ACPI its kernel could only halt.
    Halted,
    /// Its kernel panicked.
    Panic,
    /// A fault while delivering a double fault.
    TripleFault,
    /// KVM or the VMM could not go on.
    Failed,
    /// A client asked for it.
    ShutDown,
}

/// General registers.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[expect(missing_docs, reason = "each is the register of its name")]
pub struct Regs {
    pub rip: Hex,
    pub rflags: Hex,
    pub rax: Hex,
    pub rbx: Hex,
    pub rcx: Hex,
    pub rdx: Hex,
    pub rsi: Hex,
    pub rdi: Hex,
    pub rbp: Hex,
    pub rsp: Hex,
    pub r8: Hex,
    pub r9: Hex,
    pub r10: Hex,
    pub r11: Hex,
    pub r12: Hex,
    pub r13: Hex,
    pub r14: Hex,
    pub r15: Hex,
}

/// Registers of one vCPU.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[expect(missing_docs, reason = "each is the register of its name; segments give the selector")]
pub struct VcpuRegisters {
    pub vcpu: u8,
    pub regs: Regs,
    pub cr0: Hex,
    pub cr2: Hex,
    pub cr3: Hex,
    pub cr4: Hex,
    pub efer: Hex,
    pub cs: Hex,
    pub ss: Hex,
    pub ds: Hex,
    pub es: Hex,
    pub fs: Hex,
    pub gs: Hex,
    pub fs_base: Hex,
    pub gs_base: Hex,
}

/// Where to write a snapshot.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRequest {
    /// Absolute path on the service's host; a file there is replaced.
    #[schema(value_type = String, example = "/tmp/guest.snap")]
    pub path: PathBuf,
}

/// Where to write a dump.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DumpRequest {
    /// Absolute path on the service's host.
    #[schema(value_type = String, example = "/tmp/guest.core")]
    pub path: PathBuf,
    /// Replace a file that is there.
    #[serde(default)]
    pub force: bool,
}

/// A dump that was written.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct DumpWritten {
    /// The file.
    #[schema(value_type = String)]
    pub path: PathBuf,
    /// Its length; pages of zeros take no room on the host's disk.
    pub bytes: u64,
    /// For how long a running guest stood still, in milliseconds; 0 of one that did not run.
    pub stood_ms: u64,
}

/// A snapshot that was written.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Snapshot {
    /// The file.
    #[schema(value_type = String)]
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
}

impl From<ExitCounts> for Exits {
    fn from(counts: ExitCounts) -> Self {
        let ExitCounts { breakpoint, step, port, mmio, msr, interrupted, other } = counts;
        let total = counts.total();
        Self { total, breakpoint, step, port, mmio, msr, interrupted, other }
    }
}

impl From<&kvm_regs> for Regs {
    fn from(r: &kvm_regs) -> Self {
        Self {
            rip: Hex(r.rip),
            rflags: Hex(r.rflags),
            rax: Hex(r.rax),
            rbx: Hex(r.rbx),
            rcx: Hex(r.rcx),
            rdx: Hex(r.rdx),
            rsi: Hex(r.rsi),
            rdi: Hex(r.rdi),
            rbp: Hex(r.rbp),
            rsp: Hex(r.rsp),
            r8: Hex(r.r8),
            r9: Hex(r.r9),
            r10: Hex(r.r10),
            r11: Hex(r.r11),
            r12: Hex(r.r12),
            r13: Hex(r.r13),
            r14: Hex(r.r14),
            r15: Hex(r.r15),
        }
    }
}

impl VcpuRegisters {
    /// `registers` of vCPU `vcpu`.
    #[must_use]
    pub fn new(vcpu: u8, registers: &Registers) -> Self {
        let s = &registers.sregs;
        let selector = |segment: u16| Hex(segment.into());
        Self {
            vcpu,
            regs: (&registers.regs).into(),
            cr0: Hex(s.cr0),
            cr2: Hex(s.cr2),
            cr3: Hex(s.cr3),
            cr4: Hex(s.cr4),
            efer: Hex(s.efer),
            cs: selector(s.cs.selector),
            ss: selector(s.ss.selector),
            ds: selector(s.ds.selector),
            es: selector(s.es.selector),
            fs: selector(s.fs.selector),
            gs: selector(s.gs.selector),
            fs_base: Hex(s.fs.base),
            gs_base: Hex(s.gs.base),
        }
    }
}

impl From<&StopRecord> for Stopped {
    fn from(record: &StopRecord) -> Self {
        let (reason, message) = match &record.reason {
            StopReason::Reset => (Reason::Reset, None),
            StopReason::PoweredOff => (Reason::PoweredOff, None),
            StopReason::Halted => (Reason::Halted, None),
            StopReason::Panic { message } => (Reason::Panic, Some(message)),
            StopReason::TripleFault => (Reason::TripleFault, None),
            StopReason::Failed { message } => (Reason::Failed, Some(message)),
            StopReason::ShutDown => (Reason::ShutDown, None),
        };
        Self {
            reason,
            message: message.cloned(),
            vcpu: record.vcpu,
            seconds: record.seconds,
            regs: (&record.regs).into(),
        }
    }
}

impl From<&DiskConfig> for DiskStatus {
    fn from(disk: &DiskConfig) -> Self {
        Self { path: disk.path.clone(), mode: disk.mode }
    }
}

impl NetStatus {
    fn new(net: &NetConfig, up: bool) -> Self {
        Self { link: net.link.to_string(), mac: net.mac, up }
    }
}

impl VsockStatus {
    fn new(vsock: &VsockConfig, connections: usize) -> Self {
        Self { socket: vsock.socket.clone(), cid: vsock.cid, connections }
    }
}

impl VmStatus {
    /// The state of a machine whose probes `engine` has. Does not wait for a snapshot.
    #[must_use]
    pub fn new(vm: &Vm, engine: &Engine) -> Self {
        let running = engine.running_kernel();
        let held = vm.held();
        let holders = held.iter().filter_map(|&vcpu| {
            let holder = engine.holder(vcpu)?;
            let probe = format!("{}/{}", holder.group, holder.event);
            Some(HeldBy { vcpu, probe, addr: Hex(holder.at.0) })
        });
        let offset = running.vmcoreinfo.and_then(|notes| notes.kernel_offset());
        let (state, stopped) = match vm.state() {
            VmState::Created => (State::Created, None),
            VmState::Running => (State::Running, None),
            VmState::Paused => (State::Paused, None),
            VmState::Stopped(record) => (State::Stopped, Some(Stopped::from(&*record))),
        };
        let config = vm.config();
        let nets = config.nets.iter().zip(vm.links_up());
        let vsock = config.vsock.as_ref().zip(vm.vsock_connections());
        Self {
            state,
            stopped,
            held_by: holders.collect(),
            held,
            boots: vm.boots(),
            vcpus: config.vcpus,
            memory_mib: config.memory_mib,
            kernel: config.kernel.clone(),
            disks: config.disks.iter().map(DiskStatus::from).collect(),
            nets: nets.map(|(net, up)| NetStatus::new(net, up)).collect(),
            virtio_console: vm.virtio_console().map(|console| console.size().into()),
            vsock: vsock.map(|(vsock, connections)| VsockStatus::new(vsock, connections)),
            banner: running.banner.map(|banner| banner.text),
            kernel_offset: offset.map(Hex),
            snapshot: vm
                .snapshot_progress()
                .map(|it| SnapshotStatus { written: it.written(), size: it.size() }),
            seconds: vm.clock().seconds(vm.clock().now()),
            exits: vm.exit_counts().into(),
            hidden: vm.hidden().base().map(|base| Hex(base.0)),
            longest_stop_ns: u64::try_from(engine.longest_stop().as_nanos()).unwrap_or(u64::MAX),
        }
    }
}
