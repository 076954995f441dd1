//! Process 1 of the lab's host: mounts what programs expect, runs the steps of its job, reports on
//! ttyS1, and restarts the machine, which ends Bochs. If it fails, the kernel panics, which ends
//! the run as a failure.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;

use exoprobe_lab::job::{JOB_FILE, Job, RESULTS, Record, Step};
use exoprobe_tests::Interface;
use rustix::mount::{MountFlags, mount};

fn main() {
    match run() {
        // The kernel restarts by a triple fault, which ends Bochs.
        Ok(()) => drop(rustix::system::reboot(rustix::system::RebootCommand::Restart)),
        Err(error) => {
            println!("lab-init: {error}");
            drain();
        }
    }
    // Process 1 must not end: the kernel panics, which ends Bochs too, without a `Record::Done`.
}

/// Waits until all has left the serial ports: what is still on its way is lost with the machine.
fn drain() {
    for port in ["/dev/ttyS0", RESULTS] {
        if let Ok(port) = File::open(port) {
            let _ = rustix::termios::tcdrain(port.as_fd());
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    for (kind, target) in
        [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/tmp")]
    {
        std::fs::create_dir_all(target)?;
        mount(kind, target, kind, MountFlags::empty(), None)
            .map_err(|error| format!("mounting {target}: {error}"))?;
    }
    Interface::loopback().bring_up().map_err(|error| format!("raising lo: {error}"))?;
    seed_random().map_err(|error| format!("seeding /dev/random: {error}"))?;
    let job: Job = serde_json::from_slice(&std::fs::read(JOB_FILE)?)?;
    let mut results = OpenOptions::new().append(true).open(RESULTS)?;
    for step in &job.steps {
        // What an earlier step left is not this one's.
        step.collect.iter().for_each(|path| drop(std::fs::remove_file(path)));
        carry_out(step, &mut results)?;
    }
    report(&mut results, &Record::Done)?;
    drain();
    Ok(())
}

fn report(results: &mut File, record: &Record) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(record)?;
    line.push(b'\n');
    results.write_all(&line)
}

fn carry_out(step: &Step, results: &mut File) -> std::io::Result<()> {
    let name = step.name.clone();
    report(results, &Record::Begin { step: name.clone() })?;
    let status =
        Command::new(&step.program).args(&step.args).env("PATH", "/bin").envs(&step.env).status();
    for path in &step.collect {
        if let Some(record) = collected(step, path) {
            report(results, &record)?;
        }
    }
    let (ok, how) = match status {
        Ok(status) => (status.success(), status.to_string()),
        Err(error) => (false, format!("{}: {error}", step.program.display())),
    };
    report(results, &Record::End { step: name, ok, how })
}

/// A file for the other side; one that is missing is missed there.
fn collected(step: &Step, path: &Path) -> Option<Record> {
    let text = std::fs::read_to_string(path).ok()?;
    let name = path.file_name()?.to_string_lossy().into_owned();
    Some(Record::File { step: step.name.clone(), name, text })
}

/// Gives the kernel its first random bits (random(4), RNDADDENTROPY): the emulated machine has too
/// little noise of its own, and a program that waits for them, as by getrandom(2), would wait for
/// ever. They are the same in each run, as all of this machine is.
fn seed_random() -> std::io::Result<()> {
    /// linux/random.h; the constant is not in libc's crate.
    const RNDADDENTROPY: libc::Ioctl = libc::_IOW::<[libc::c_int; 2]>(b'R' as u32, 0x03);
    /// `struct rand_pool_info` with 32 bytes.
    #[repr(C)]
    struct Seed {
        entropy_count: libc::c_int,
        buf_size: libc::c_int,
        buf: [u32; 8],
    }
    let seed = Seed { entropy_count: 256, buf_size: 32, buf: [0x6578_6f70; 8] };
    let random = File::open("/dev/random")?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&random);
    // SAFETY: the request lives across the call, `buf_size` is the size of `buf`, and the kernel
    // only reads it.
    match unsafe { libc::ioctl(fd, RNDADDENTROPY, &raw const seed) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
