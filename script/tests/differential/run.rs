//! Runs a script of `BEGIN`, `END` and `interval` without a guest.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use exoprobe_script::{
    AttachmentKind, Collected, Datum, Diagnostics, Flow, Format, Hit, Host, Limits, NoKernel,
    Options, Program, Read, Runtime, Script, check,
};

/// Longest run, in nanoseconds of the script's time.
const TIME_MAX: u64 = 3_000_000_000;

/// Output of a script, and its exit status.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ran {
    pub(crate) output: String,
    pub(crate) status: i32,
}

/// Nanoseconds since the boot of this machine.
fn uptime() -> u64 {
    let text = std::fs::read_to_string("/proc/uptime").unwrap();
    let seconds: Vec<&str> = text.split([' ', '.']).collect();
    (seconds[0].parse::<u64>().unwrap() * 100 + seconds[1].parse::<u64>().unwrap()) * 10_000_000
}

/// A host that answers as the machine on which bpftrace runs as root.
struct Root;

impl Host for Root {
    fn username(&self, uid: u32) -> Option<String> {
        (uid == 0).then(|| "root".to_owned())
    }

    fn wall_clock(&self, time: u64) -> i64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        i64::try_from(now.as_nanos()).unwrap() - i64::try_from(uptime()).unwrap()
            + i64::try_from(time).unwrap()
    }

    fn file(&self, path: &str) -> Result<Vec<u8>, String> {
        std::fs::read(path).map_err(|error| error.to_string())
    }

    fn command(&self, command: &str) -> Result<Option<Vec<u8>>, String> {
        let ran = std::process::Command::new("sh").args(["-c", command]).output();
        ran.map(|ran| Some(ran.stdout)).map_err(|error| error.to_string())
    }
}

/// Checks a script without a kernel.
pub(crate) fn program(text: &str, params: &[String]) -> Result<Program, Diagnostics> {
    let script = Script::parse(text, params)?;
    let options = Options { allow_unsafe: true, has_shell: true, ..Options::default() };
    check(&script, &NoKernel, &options)
}

/// Runs a script to its end.
pub(crate) fn run(text: &str, params: &[String], format: Format) -> Ran {
    match program(text, params) {
        Ok(program) => run_program(program, format),
        Err(_) => Ran { output: String::new(), status: 1 },
    }
}

fn run_program(program: Program, format: Format) -> Ran {
    let program = Arc::new(program);
    let mut out = Collected::default();
    let mut runtime = Runtime::new(Arc::clone(&program), format, Limits::default());
    let start = uptime();
    runtime.start(start, &mut out);
    let mut status = None;
    fire(&program, &mut runtime, &mut out, &mut status, start, &|kind| {
        *kind == AttachmentKind::Begin
    });
    for (time, index) in ticks(&program) {
        if status.is_some() {
            break;
        }
        let kind = program.attachments[index].kind.clone();
        fire(&program, &mut runtime, &mut out, &mut status, start + time, &|other| *other == kind);
    }
    fire(&program, &mut runtime, &mut out, &mut None, start, &|kind| *kind == AttachmentKind::End);
    runtime.finish(&Root, &mut out);
    let output = String::from_utf8_lossy(&out.bytes).into_owned();
    Ran { output, status: status.unwrap_or(0) }
}

/// Times of all intervals in order.
fn ticks(program: &Program) -> Vec<(u64, usize)> {
    let mut ticks = Vec::new();
    for (index, attachment) in program.attachments.iter().enumerate() {
        if let AttachmentKind::Interval { nanoseconds } = attachment.kind {
            ticks.extend((1..=TIME_MAX / nanoseconds).map(|round| (round * nanoseconds, index)));
        }
    }
    ticks.sort_unstable();
    ticks
}

fn fire(
    program: &Program,
    runtime: &mut Runtime,
    out: &mut Collected,
    status: &mut Option<i32>,
    time: u64,
    is_meant: &dyn Fn(&AttachmentKind) -> bool,
) {
    for (index, attachment) in program.attachments.iter().enumerate() {
        if !is_meant(&attachment.kind) {
            continue;
        }
        for body in &attachment.bodies {
            let values: Vec<Datum<'_>> = program.bodies[*body].reads.iter().map(datum).collect();
            let hit = Hit { time, cpu: 0, values: &values };
            let outcome = runtime.run(index, *body, &hit, &Root, out).unwrap();
            if let Flow::Exit(code) = outcome.flow {
                status.get_or_insert(code);
            }
        }
    }
}

fn datum(read: &Read) -> Datum<'static> {
    match read {
        Read::Comm => Datum::Bytes(b"bpftrace\0\0\0\0\0\0\0\0"),
        Read::Pid | Read::Tid => Datum::Int(1),
        Read::Uid | Read::Gid => Datum::Int(0),
        _ => Datum::Fault,
    }
}
