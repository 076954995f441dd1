//! Dumps (`exoprobe vm dump`), opened by drgn and by readelf.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use exoprobe_tests::harness::Case;
use exoprobe_tests::http;
use exoprobe_tests::{
    PATIENCE, Service, TestGuest, TestKernel, address, cases, finish, guest_file, host,
    python_environment, python_file,
};
use exoprobe_vmm::{ControlError, Vm, VmState, WriteProgress};
use serde_json::{Value, json};

pub(crate) const CASES: &[Case] = cases![
    drgn_shows_a_paused_guest_as_the_service_does(vcpus) needs [Kvm, DebugInfo, Python],
    drgn_shows_why_a_guest_panicked(vcpus) needs [Kvm, DebugInfo, Python],
    a_held_guest_is_dumped_where_it_is_and_stays_held needs [Kvm, Smp, DebugInfo, Python],
    a_kernel_that_kaslr_moved_is_dumped needs [Kvm, DebugInfo, Python],
    a_running_guest_goes_on_and_readelf_reads_its_dump(vcpus) needs [Kvm, DebugInfo],
    a_path_that_cannot_be_is_refused needs [Kvm, Repeat],
    a_guest_that_never_began_has_memory_and_registers_alone needs [Kvm, Repeat],
];

const GETPID: &str = "__x64_sys_getpid";
const OPEN: &str = "do_sys_openat2";

/// The output of `tests/python/dump.py`: see there.
fn drgn(core: &Path, kernel: TestKernel, symbols: &[&str]) -> Value {
    let environment = python_environment("drgn");
    let mut program = Command::new(environment.join("bin/python"));
    program.arg(python_file("dump.py")).arg(core).arg(kernel.file("vmlinux.debug")).args(symbols);
    let output = finish(&mut program, PATIENCE);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program:?}: {}\n{error}", output.status);
    serde_json::from_slice(&output.stdout).unwrap()
}

fn ask(service: &Service, args: &[&str]) -> Value {
    serde_json::from_str(&service.ok(&[&["--json"], args].concat())).unwrap()
}

fn dump(service: &Service, path: &Path) -> Value {
    ask(service, &["vm", "dump", path.to_str().unwrap()])
}

fn wait_until(service: &Service, what: &str, reached: impl Fn(&Value) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = ask(service, &["vm", "status"]);
        if reached(&status) {
            return;
        }
        assert!(Instant::now() < deadline, "{what}: {status}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An address as the service writes it.
fn number(text: &Value) -> u64 {
    let digits = text.as_str().unwrap().strip_prefix("0x").unwrap();
    u64::from_str_radix(digits, 16).unwrap()
}

fn functions(cpu: &Value) -> Vec<&str> {
    cpu["functions"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect()
}

/// The first bytes of a function in the kernel's file.
fn code(name: &str) -> String {
    use object::{Object, ObjectSegment};
    let data = std::fs::read(guest_file("vmlinux")).unwrap();
    let file = object::File::parse(&*data).unwrap();
    let at = address(name).0;
    let mut found = file.segments().filter_map(|part| part.data_range(at, 8).unwrap());
    found.next().unwrap().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn drgn_shows_a_paused_guest_as_the_service_does(vcpus: u8) {
    let dir = tempfile::tempdir().unwrap();
    let core = dir.path().join("paused.core");
    let service = Service::restored(vcpus);
    // A jmp, once it is optimized, and an int3.
    drop(service.ok(&["probe", "add", &format!("p:jumps {GETPID}")]));
    drop(service.ok(&[
        "probe",
        "add",
        &json!({"event": "stops", "symbol_name": OPEN, "actions": ["stack"]}).to_string(),
    ]));
    assert!(service.work("getpid 10").ends_with(" 10\n"));
    let deadline = Instant::now() + PATIENCE;
    while !service.ok(&["probe", "list"]).contains("optimized") {
        assert!(Instant::now() < deadline, "{}", service.ok(&["probe", "list"]));
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(service.ok(&["vm", "pause"]));
    let made = dump(&service, &core);
    assert_eq!(made["path"], core.to_str().unwrap());
    assert_eq!(made["bytes"], std::fs::metadata(&core).unwrap().len());
    assert_eq!(made["stood_ms"], 0, "it did not run");
    let shown = drgn(&core, TestKernel::Tiny, &[GETPID, OPEN]);
    assert_same(&service, &shown);
    assert_eq!(shown["cpus"].as_array().unwrap().len(), usize::from(vcpus));
    // The bytes of probes are not in it.
    assert_eq!(shown["code"], json!({ GETPID: code(GETPID), OPEN: code(OPEN) }));
    drop(service.ok(&["vm", "resume"]));
    assert!(service.work("getpid 10").ends_with(" 10\n"));
}

/// Compares a dump with a guest that does not run.
fn assert_same(service: &Service, shown: &Value) {
    let status = ask(service, &["vm", "status"]);
    let release = status["banner"].as_str().unwrap().split(' ').nth(2).unwrap();
    assert_eq!(shown["release"], release);
    let ticks = ask(service, &["x", "jiffies_64", "8"]);
    let bytes = u64::from_str_radix(ticks["bytes"].as_str().unwrap(), 16).unwrap().swap_bytes();
    assert_eq!(shown["jiffies"], bytes);
    let processes = ask(service, &["ps"]);
    let processes = processes.as_array().unwrap().iter();
    let tasks: Value = processes.map(|it| json!([it["pid"], it["comm"]])).collect();
    assert_eq!(shown["tasks"], tasks);
    for (vcpu, cpu) in shown["cpus"].as_array().unwrap().iter().enumerate() {
        let registers = ask(service, &["vm", "registers", &vcpu.to_string()]);
        for name in ["rip", "rsp", "rbx", "r15", "rdi"] {
            let expected = number(&registers["regs"][name]);
            assert_eq!(cpu["registers"][name], expected, "{name} of {vcpu}: {cpu}");
        }
    }
}

fn drgn_shows_why_a_guest_panicked(vcpus: u8) {
    let dir = tempfile::tempdir().unwrap();
    let core = dir.path().join("dead.core");
    let service = Service::restored(vcpus);
    let _ = http::ask(service.socket(), "POST", "/v1/vm/serial/1", &[], b"panic\n");
    wait_until(&service, "it stops", |status| status["state"] == "stopped");
    let refused = service.client(&["vm", "snapshot", "dead.snap"]);
    let hint = String::from_utf8(refused.stderr).unwrap();
    assert!(hint.contains("`exoprobe vm dump`"), "{hint}");
    assert_eq!(dump(&service, &core)["stood_ms"], 0);
    let shown = drgn(&core, TestKernel::Tiny, &[]);
    let status = ask(&service, &["vm", "status"]);
    let stopped = &status["stopped"];
    let cpus = shown["cpus"].as_array().unwrap();
    let panicked = cpus.iter().find(|cpu| cpu["pid"] == 1).expect("init caused it");
    assert_eq!(panicked["pc"], number(&stopped["regs"]["rip"]), "{stopped}");
    let names = functions(panicked);
    let at = names.iter().position(|name| *name == "panic").expect("it panicked");
    assert_eq!(names[at + 1], "do_exit", "{names:?}");
    assert!(names.contains(&"do_syscall_64"), "{names:?}");
    let log = shown["log"].as_str().unwrap();
    assert!(log.contains("Attempted to kill init!"), "{log}");
}

fn a_held_guest_is_dumped_where_it_is_and_stays_held() {
    let dir = tempfile::tempdir().unwrap();
    let core = dir.path().join("held.core");
    let service = Service::restored(2);
    let stop = json!({"event": "hold", "symbol_name": OPEN, "actions": ["stop"]});
    drop(service.ok(&["probe", "add", &stop.to_string()]));
    let work = b"spawn 1 open /init 1\n";
    let _ = http::ask(service.socket(), "POST", "/v1/vm/serial/1", &[], work);
    let held = |status: &Value| status["held"] == json!([1]);
    wait_until(&service, "the hit", held);
    drop(dump(&service, &core));
    assert!(held(&ask(&service, &["vm", "status"])), "as before");
    let shown = drgn(&core, TestKernel::Tiny, &[OPEN]);
    assert_same(&service, &shown);
    let cpu = &shown["cpus"][1];
    assert_eq!(functions(cpu)[..2], [OPEN, "do_sys_open"], "{cpu}");
    assert_eq!(cpu["pc"], address(OPEN).0);
    assert_eq!(shown["code"][OPEN], code(OPEN));
    drop(service.ok(&["probe", "rm", "hold"]));
    drop(service.ok(&["vm", "resume"]));
    assert!(service.work("getpid 10").ends_with(" 10\n"));
}

/// Pauses the guest where its first vCPU has callers in the kernel: not at a system call's first
/// instructions.
fn pause_in_a_call(guest: &TestGuest) {
    const TRIES: u32 = 1000;
    for _ in 0..TRIES {
        guest.vm.pause().unwrap();
        let frames = guest.engine.stack(0).unwrap();
        if frames.iter().filter(|frame| !frame.user).count() > 1 {
            return;
        }
        guest.vm.resume().unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it is in no function of the kernel, each time");
}

fn a_kernel_that_kaslr_moved_is_dumped() {
    let dir = tempfile::tempdir().unwrap();
    let core = dir.path().join("core");
    let guest = TestKernel::Linux6_12.restored(1);
    pause_in_a_call(&guest);
    guest.vm.dump(&core, false, &WriteProgress::default(), || guest.engine.dump_notes()).unwrap();
    let shown = drgn(&core, TestKernel::Linux6_12, &[]);
    let banner = guest.engine.running_kernel().banner.unwrap();
    assert_eq!(shown["release"], banner.text.split(' ').nth(2).unwrap());
    let processes = guest.engine.processes().unwrap();
    let tasks: Value =
        processes.iter().map(|it| json!([it.task.id.pid, it.task.id.name()])).collect();
    assert_eq!(shown["tasks"], tasks);
    assert_eq!(shown["cpus"][0]["pc"], guest.vm.registers(0).unwrap().regs.rip);
    let functions = functions(&shown["cpus"][0]);
    assert!(functions.len() > 1, "{functions:?}");
    assert!(matches!(guest.vm.state(), VmState::Paused));
}

fn a_running_guest_goes_on_and_readelf_reads_its_dump(vcpus: u8) {
    let dir = tempfile::tempdir().unwrap();
    let core = dir.path().join("core");
    let service = Service::restored(vcpus);
    let made = dump(&service, &core);
    assert!(made["stood_ms"].is_u64(), "{made}");
    assert_eq!(ask(&service, &["vm", "status"])["state"], "running");
    assert!(service.work("getpid 10").ends_with(" 10\n"));
    let output =
        finish(Command::new("readelf").args(["-W", "-h", "-n", "-l"]).arg(&core), PATIENCE);
    let (shown, complaints) = (String::from_utf8_lossy(&output.stdout), output.stderr);
    assert!(output.status.success() && complaints.is_empty(), "{shown}\n{complaints:?}");
    assert!(shown.contains("CORE (Core file)"), "{shown}");
    assert_eq!(shown.matches("NT_PRSTATUS").count(), usize::from(vcpus), "{shown}");
    assert_eq!(shown.matches("VMCOREINFO").count(), 1, "{shown}");
    assert!(
        shown.contains(
            "LOAD           0x001000 0xffff888000000000 0x0000000000000000 0x2000000 0x2000000"
        ),
        "{shown}"
    );
    let notes = String::from_utf8_lossy(&std::fs::read(&core).unwrap()[..4096]).into_owned();
    assert!(notes.contains("\nKERNELOFFSET=0\n"), "{notes}");
}

fn a_path_that_cannot_be_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::restored(1);
    let file = dir.path().join("mine");
    std::fs::write(&file, "mine").unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let file = file.to_str().unwrap();
    for (args, expected) in [
        (&[file][..], "--force"),
        (&[link.to_str().unwrap(), "--force"], "is no regular file"),
        (&["/dev/null", "--force"], "is no regular file"),
        (&["/nonexistent/core"], "/nonexistent/core: No such file"),
    ] {
        let refused = service.client(&[&["vm", "dump"], args].concat());
        let error = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && error.contains(expected), "{args:?}: {error}");
        assert_eq!(ask(&service, &["vm", "status"])["state"], "running", "{args:?}");
    }
    assert_eq!(std::fs::read(file).unwrap(), b"mine");
    drop(service.ok(&["vm", "dump", "--force", file]));
    assert!(std::fs::read(file).unwrap().starts_with(b"\x7fELF"));
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 2, "no part of a dump is left");
}

fn a_guest_that_never_began_has_memory_and_registers_alone() {
    let dir = tempfile::tempdir().unwrap();
    let core = dir.path().join("core");
    let config = TestGuest::config("vmlinux", 1);
    let guest = TestGuest::new(Vm::create(host(), &config).unwrap());
    let dump =
        || guest.vm.dump(&core, false, &WriteProgress::default(), || guest.engine.dump_notes());
    let refused = dump();
    assert!(matches!(refused, Err(ControlError::NotStarted)), "{refused:?}");
    assert!(!core.exists());
    guest.vm.shut_down();
    let made = dump().unwrap();
    assert_eq!(made.stood, Duration::ZERO);
    let bytes = std::fs::read(&core).unwrap();
    assert_eq!(bytes.len() as u64, made.bytes);
    let notes = String::from_utf8_lossy(&bytes[..4096]);
    assert!(notes.contains("CORE") && !notes.contains("VMCOREINFO"), "{notes}");
    let rip = guest.vm.registers(0).unwrap().regs.rip.to_le_bytes();
    assert!(bytes[..4096].windows(8).any(|word| word == rip));
}
