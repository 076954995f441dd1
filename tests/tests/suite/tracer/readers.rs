//! Libraries of Debian's read the mounted files and what trace-cmd records from them: KernelShark's
//! shows what `trace` shows, and libtraceevent reads each `format` as the definition says.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use exoprobe_tests::harness::Case;
use exoprobe_tests::{PATIENCE, Service, cases, finish};

use crate::support::mounted::{Line, Mounted, lines};
use crate::support::tracer::{append, cat, work};

pub(crate) const CASES: &[Case] = cases![
    kernelshark_lists_what_the_trace_shows(vcpus) needs [Kvm, Fuse, Namespaces, TraceCmd, Apt],
    kernelshark_opens_each_instance needs [Kvm, Fuse, Namespaces, TraceCmd, Apt],
    libtraceevent_reads_each_format_as_its_definition_says needs [Kvm, Apt],
];

const GETPID: &str = "__x64_sys_getpid";

/// A program of `tests/c/`, built at its first use.
fn reader(name: &str) -> PathBuf {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/trace-readers.sh");
    Path::new(run(&mut Command::new(script)).trim()).join(name)
}

fn run(command: &mut Command) -> String {
    let output = finish(command, PATIENCE);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The entries of a recorded file, sorted, each with the number of its stream.
fn entries(file: &Path) -> Vec<(u32, Line)> {
    let listed = run(Command::new(reader("kernelshark")).arg(file));
    let mut entries: Vec<(u32, Line)> = listed.lines().map(entry).collect();
    assert!(entries.iter().all(|(_, Line(_, event, _))| event != "?"), "{listed}");
    entries.sort();
    entries
}

/// Reads `STREAM TASK CPU NANOSECONDS GROUP/EVENT INFO`.
fn entry(text: &str) -> (u32, Line) {
    let fields: Vec<&str> = text.split('\t').collect();
    let [stream, task, cpu, time, event, info] = fields[..] else { panic!("{text}") };
    let (cpu, time): (u32, u64) = (cpu.parse().unwrap(), time.parse().unwrap());
    let (seconds, micros) = (time / 1_000_000_000, time / 1000 % 1_000_000);
    let (_, event) = event.split_once('/').unwrap_or_else(|| panic!("{text}"));
    let context = format!("{task} [{cpu:03}] {seconds}.{micros:06}");
    (stream.parse().unwrap(), Line::new(&context, event, info))
}

fn kernelshark_lists_what_the_trace_shows(vcpus: u8) {
    let service = Service::restored(vcpus);
    let mounted = Mounted::new(&service);
    let values = "a=$arg1:s32 b=$arg1:x16 s=+0($arg2):ustring t=+0($arg2):u8[3] f=$arg1:b4@2/32 \
        y=%ip:symstr $comm";
    append(&service, "kprobe_events", &format!("p:open do_sys_openat2 {values}"));
    append(&service, "kprobe_events", "r:g/opened do_sys_openat2 fd=$retval:s32");
    append(&service, "kprobe_events", &format!("p:getpid {GETPID}"));
    append(&service, "events/enable", "1");
    work(&service, "open /dev/null 5");
    work(&service, &format!("par {vcpus} getpid 300"));
    append(&service, "trace_marker", "a text of mine");
    append(&service, "events/enable", "0");
    let trace = cat(&service, "trace");
    let shown = lines(&trace);
    assert_eq!(shown.len(), 2 * 5 + 300 * usize::from(vcpus) + 1, "{trace}");
    let _ = mounted.run("trace-cmd extract -o trace.dat >&2");
    let listed = entries(&mounted.file("trace.dat"));
    assert!(listed.iter().all(|(stream, _)| *stream == 0));
    let listed: Vec<Line> = listed.into_iter().map(|(_, line)| line).collect();
    let differs = shown.iter().zip(&listed).find(|(shown, listed)| shown != listed);
    assert_eq!((differs, shown.len()), (None, listed.len()));

    append(&service, "events/g/opened/trigger", "stacktrace");
    work(&service, "open /dev/null 2");
    let _ = mounted.run("trace-cmd extract -o trace.dat >&2");
    let listed = entries(&mounted.file("trace.dat"));
    let events = ["opened", "kernel_stack"].map(|event| {
        listed
            .iter()
            .filter(|(_, Line(context, name, _))| name == event && context.starts_with("init-1 "))
            .count()
    });
    assert_eq!(events, [2, 2], "{listed:?}");
}

fn kernelshark_opens_each_instance() {
    let service = Service::restored(1);
    let mounted = Mounted::new(&service);
    append(&service, "kprobe_events", &format!("p:getpid {GETPID}\np:other {GETPID}"));
    let _ = mounted.run(
        "trace-cmd record -q --nosplice -e kprobes:other -B foo -e kprobes:getpid -o trace.dat \
         \"$EXOPROBE\" vm send getpid 200 >&2",
    );
    let listed = entries(&mounted.file("trace.dat"));
    let of = |wanted: u32, name: &str| {
        listed.iter().filter(|(stream, line)| (*stream, &*line.1) == (wanted, name)).count()
    };
    assert_eq!((of(0, "other"), of(1, "getpid"), listed.len()), (200, 200, 400));
}

/// A field as libtraceevent is to read it: its declaration's type, its name, bytes of an element,
/// elements (1 for no array), and letters of `tests/c/formats.c`.
type Field = (&'static str, &'static str, usize, usize, &'static str);

const IP: Field = ("unsigned long", "__probe_ip", 8, 1, "l");
const TEXT: &str = "__data_loc char[]";

/// An event: its group, its name, its fields in order, and the number of values that are printed.
type Event = (&'static str, &'static str, &'static [Field], usize);

/// Of the definitions of [`define_all`].
const EVENTS: [Event; 5] = [
    (
        "kprobes",
        "numbers",
        &[
            IP,
            ("u8", "a", 1, 1, "-"),
            ("u16", "b", 2, 1, "-"),
            ("u32", "c", 4, 1, "-"),
            ("u64", "d", 8, 1, "-"),
            ("s8", "e", 1, 1, "s"),
            ("s16", "f", 2, 1, "s"),
            ("s32", "g", 4, 1, "s"),
            ("s64", "h", 8, 1, "s"),
            ("u8", "i", 1, 1, "-"),
            ("u16", "j", 2, 1, "-"),
            ("u32", "k", 4, 1, "-"),
            ("u64", "l", 8, 1, "-"),
            ("u32", "m", 4, 1, "-"),
            ("u8", "n", 1, 1, "-"),
            ("u64", "o", 8, 1, "-"),
        ],
        16,
    ),
    (
        "kprobes",
        "texts",
        &[
            IP,
            (TEXT, "a", 4, 1, "sadt"),
            (TEXT, "b", 4, 1, "sadt"),
            (TEXT, "c", 4, 1, "sadt"),
            (TEXT, "d", 4, 1, "sadt"),
            (TEXT, "e", 4, 1, "sadt"),
            ("u64", "f", 8, 1, "-"),
        ],
        7,
    ),
    (
        "kprobes",
        "arrays",
        &[
            IP,
            ("u8[]", "a", 1, 3, "at"),
            ("s32[]", "b", 4, 2, "sa"),
            ("u64[]", "c", 8, 4, "a"),
            ("u16[]", "d", 2, 5, "a"),
        ],
        15,
    ),
    (
        "mine",
        "returned",
        &[
            ("unsigned long", "__probe_func", 8, 1, "l"),
            ("unsigned long", "__probe_ret_ip", 8, 1, "l"),
            ("s32", "fd", 4, 1, "s"),
            ("u64", "dfd", 8, 1, "-"),
        ],
        4,
    ),
    ("kprobes", "bare", &[IP], 1),
];

fn define_all(service: &Service) {
    let of_type = |kind: &str| format!("%di:{kind}");
    let numbers = "u8 u16 u32 u64 s8 s16 s32 s64 x8 x16 x32 x64 b4@2/32 char symbol";
    let texts = "+0(%si):string +0(%si):ustring %ip:symstr $comm \\\"text\":string %di";
    let arrays = "+0(%si):u8[3] +0(%si):s32[2] +0(%si):x64[4] +0(%si):b3@1/16[5]";
    let numbers: Vec<String> = numbers.split(' ').map(of_type).collect();
    for (name, values) in [("numbers", &*numbers.join(" ")), ("texts", texts), ("arrays", arrays)] {
        let mut line = format!("p:{name} do_sys_openat2");
        for (name, value) in ('a'..).zip(values.split(' ')) {
            write!(line, " {name}={value}").unwrap();
        }
        append(service, "kprobe_events", &line);
    }
    for line in [
        "r:mine/returned do_sys_openat2 fd=$retval:s32 dfd=$arg1:u64",
        "p:bare __x64_sys_getpid",
        "p:failed do_sys_openat2 a=+0(%si):string[2] b=%di:u8",
        "p:name vfs_open path=+8($arg1):%pd file=$arg2:%pD",
    ] {
        append(service, "kprobe_events", line);
    }
    append(
        service,
        "synthetic_events",
        "made u8 a; s16 b; unsigned int c; long d; u64 e; char f[16]; char g[]; bool h; pid_t i",
    );
}

/// A synthetic event's fields: name, type, bytes, letters, and bytes of a record: 8, or 256 for a
/// text of its own size.
const MADE: [(&str, &str, usize, &str, usize); 9] = [
    ("a", "u8", 1, "-", 8),
    ("b", "s16", 2, "s", 8),
    ("c", "unsigned int", 4, "-", 8),
    ("d", "long", 8, "sl", 8),
    ("e", "u64", 8, "-", 8),
    ("f", "char[]", 16, "sat", 256),
    ("g", TEXT, 8, "sadt", 8),
    ("h", "bool", 1, "s", 8),
    ("i", "pid_t", 4, "s", 8),
];

/// As `formats` prints it.
fn field(name: &str, at: usize, size: usize, flags: &str, ty: &str) -> String {
    format!("field {name} {at} {size} {flags} {ty}\n")
}

/// The lines that `formats` prints before an event's fields.
fn head(service: &Service, group: &str, name: &str, is: &str) -> String {
    let id = cat(service, &format!("events/{group}/{name}/id"));
    format!(
        "event {group} {name} {} {is}\ncommon common_type 0 2 - unsigned short\n\
         common common_flags 2 1 - unsigned char\n\
         common common_preempt_count 3 1 - unsigned char\n\
         common common_pid 4 4 s int\n",
        id.trim()
    )
}

fn libtraceevent_reads_each_format_as_its_definition_says() {
    let service = Service::restored(1);
    define_all(&service);
    let folder = tempfile::tempdir().unwrap();
    let formats = reader("formats");
    let read = |group: &str, name: &str| {
        let path = folder.path().join(group).join(name);
        std::fs::create_dir_all(&path).unwrap();
        let text = cat(&service, &format!("events/{group}/{name}/format"));
        std::fs::write(path.join("format"), text).unwrap();
        run(Command::new(&formats).arg(path.join("format")))
    };
    for (group, name, fields, printed) in EVENTS {
        let mut expected = head(&service, group, name, "parsed");
        let mut end = 8;
        for (ty, name, element, elements, flags) in fields {
            let size = element * elements;
            expected += &field(name, end, size, flags, ty);
            end += size;
        }
        writeln!(expected, "arguments {printed}").unwrap();
        assert_eq!(read(group, name), expected, "{group}/{name}");
    }

    let mut expected = head(&service, "synthetic", "made", "parsed");
    let mut end = 8;
    for (name, ty, size, flags, room) in MADE {
        expected += &field(name, end, size, flags, ty);
        end += room;
    }
    assert_eq!(read("synthetic", "made"), expected + "arguments 9\n");

    // Names of files are texts.
    let names = read("kprobes", "name");
    assert!(names.contains(" parsed\n") && names.matches(" sadt ").count() == 2, "{names}");
    // The library takes no array of texts; of such an event it knows the fields before that.
    let expected = head(&service, "kprobes", "failed", "failed")
        + &field("__probe_ip", 8, 8, "l", "unsigned long")
        + "arguments 0\n";
    assert_eq!(read("kprobes", "failed"), expected);
    for (name, fields) in [
        ("print", "field ip 8 8 l unsigned long\nfield buf 16 0 at char[]\n"),
        ("kernel_stack", "field size 8 4 s int\nfield caller 16 0 al unsigned long[]\n"),
    ] {
        let expected = head(&service, "ftrace", name, "parsed") + fields + "arguments 1\n";
        assert_eq!(read("ftrace", name), expected);
    }
}
