//! `exoprobe doctor`.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use exoprobe_guest::quirks::SoftwareKvm;
use exoprobe_vmm::{BreakpointExit, DEFAULT_KVM, Host, HostProfile, Reinjection};
use serde::Serialize;

use super::error::CliError;

const EXAMPLES: &str = "\
Examples:
  exoprobe doctor
  exoprobe doctor --json | jq .software";

/// Arguments of `doctor`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct DoctorArgs {
    /// KVM's device
    #[arg(long, value_name = "PATH", default_value = DEFAULT_KVM)]
    kvm: PathBuf,
}

/// The device's owner and permissions.
#[derive(Debug, Serialize)]
struct Device {
    mode: String,
    uid: u32,
    gid: u32,
}

/// A feature that KVM lacks on this host.
#[derive(Debug, Serialize)]
struct Software {
    syscall_faults: bool,
    /// CPUID in guest user mode is the host's.
    host_cpuid: bool,
}

#[derive(Debug, Serialize)]
struct Findings {
    breakpoint: BreakpointExit,
    reinjection: Reinjection,
    /// Absent on hardware KVM.
    software: Option<Software>,
    /// KVM's dirty log has every store of the guest.
    dirty_log: bool,
}

impl From<HostProfile> for Findings {
    fn from(profile: HostProfile) -> Self {
        let HostProfile { breakpoint, reinjection, software, dirty_log } = profile;
        let software = software.map(|SoftwareKvm { syscall_faults, host_cpuid }| Software {
            syscall_faults,
            host_cpuid,
        });
        Self { breakpoint, reinjection, software, dirty_log }
    }
}

/// The content of doctor's report.
#[derive(Debug, Serialize)]
struct Report {
    ok: bool,
    kvm: PathBuf,
    device: Option<Device>,
    kernel: String,
    seconds: f64,
    #[serde(flatten)]
    findings: Option<Findings>,
    error: Option<String>,
}

pub(super) fn run(args: &DoctorArgs, json: bool, out: &mut dyn Write) -> Result<(), CliError> {
    let started = Instant::now();
    let examined = Host::open(&args.kvm).map(|host| host.profile());
    let report = Report {
        ok: examined.is_ok(),
        kvm: args.kvm.clone(),
        device: device(&args.kvm),
        kernel: kernel_release(),
        seconds: started.elapsed().as_secs_f64(),
        findings: examined.as_ref().ok().copied().map(Findings::from),
        error: examined.as_ref().err().map(ToString::to_string),
    };
    if json {
        let text = serde_json::to_string_pretty(&report).map_err(std::io::Error::from)?;
        writeln!(out, "{text}")?;
    } else {
        write!(out, "{}", text(&report))?;
    }
    // Facts before the error, where both go to one terminal.
    out.flush()?;
    match examined {
        Ok(_) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn device(path: &Path) -> Option<Device> {
    let metadata = std::fs::metadata(path).ok()?;
    let mode = format!("{:04o}", metadata.mode() & 0o7777);
    Some(Device { mode, uid: metadata.uid(), gid: metadata.gid() })
}

fn kernel_release() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    text.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

fn text(report: &Report) -> String {
    let device = match &report.device {
        Some(Device { mode, uid, gid }) => format!(" (mode {mode}, uid {uid}, gid {gid})"),
        None => String::new(),
    };
    let mut lines = vec![
        format!("KVM device      {}{device}", report.kvm.display()),
        format!("Host kernel     {}", report.kernel),
        format!("Examined in     {:.1} ms", report.seconds * 1000.0),
    ];
    if let Some(findings) = &report.findings {
        lines.extend(finding_lines(findings));
    }
    lines.join("\n") + "\n"
}

fn finding_lines(findings: &Findings) -> Vec<String> {
    let breakpoint = match findings.breakpoint {
        BreakpointExit::Debug => "exit as debug exceptions (KVM_EXIT_DEBUG), as KVM documents",
        BreakpointExit::EmulationFailure => "exit as emulation failures, recognized by their bytes",
    };
    let reinjection = match findings.reinjection {
        Reinjection::OnInt3 => "with RIP on the int3",
        Reinjection::AfterInt3 => "with RIP after the int3",
    };
    let dirty_log = match findings.dirty_log {
        true => "has every store of the guest",
        false => "misses stores: the guest stands still while its RAM is searched for jmps",
    };
    let mut lines = vec![
        format!("Breakpoints     {breakpoint}"),
        format!("Handed back     {reinjection}, when they are the guest's own"),
        format!("Dirty log       {dirty_log}"),
    ];
    match &findings.software {
        None => lines.push("Virtualization  by hardware: guests run at full speed".to_owned()),
        Some(software) => lines.extend(software_lines(software)),
    }
    lines
}

fn software_lines(software: &Software) -> Vec<String> {
    let Software { syscall_faults, host_cpuid } = *software;
    let kvm = SoftwareKvm { syscall_faults, host_cpuid };
    let title = format!("Virtualization  {}", kvm.name());
    let follows = kvm.consequences().into_iter().map(|line| format!("  - {line}"));
    [title, String::new(), "Consequences:".to_owned()].into_iter().chain(follows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(software: Option<Software>) -> Report {
        let findings = Findings {
            breakpoint: BreakpointExit::Debug,
            reinjection: Reinjection::OnInt3,
            software,
            dirty_log: true,
        };
        Report {
            ok: true,
            kvm: PathBuf::from("/dev/kvm"),
            device: Some(Device { mode: "0660".to_owned(), uid: 0, gid: 36 }),
            kernel: "6.1.0".to_owned(),
            seconds: 0.0123,
            findings: Some(findings),
            error: None,
        }
    }

    #[test]
    fn software_kvm_is_explained_and_hardware_needs_no_words() {
        let hardware = text(&report(None));
        assert!(hardware.contains("Dirty log       has every store"));
        assert!(hardware.contains("/dev/kvm (mode 0660, uid 0, gid 36)"));
        assert!(hardware.contains("12.3 ms") && hardware.contains("by hardware"));
        let software = text(&report(Some(Software { syscall_faults: true, host_cpuid: false })));
        assert!(software.contains("find no AVX") && !software.contains("GLIBC_TUNABLES"));
        assert!(
            software.contains("emulates guest kernel code") && software.contains("many minutes")
        );
        assert!(software.contains("System calls fault"));
        let own_cpuid = text(&report(Some(Software { syscall_faults: true, host_cpuid: true })));
        assert!(own_cpuid.contains("loses values") && own_cpuid.contains("GLIBC_TUNABLES"));
    }

    #[test]
    fn a_host_without_kvm_is_reported_and_fails() {
        let args = DoctorArgs { kvm: PathBuf::from("/nonexistent/kvm") };
        let mut out = Vec::new();
        let error = run(&args, false, &mut out).unwrap_err();
        assert_eq!(error.status(), 1);
        assert!(error.message().unwrap().contains("modprobe"));
        out.clear();
        assert_eq!(run(&args, true, &mut out).unwrap_err().status(), 1);
        let report: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(report["ok"], false);
        assert!(report["error"].as_str().unwrap().contains("does not exist"));
    }
}
