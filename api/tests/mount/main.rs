//! `exoprobe mount` as a program, with a real mount, over a service that is a small fake.

mod mounted;
mod service;

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};

use libtest_mimic::{Arguments, Completion, Trial};

use mounted::{Point, Program, shell, until};
use service::{ODD, Service};

/// All tests. Each is a mount of its own.
const CASES: [(&str, fn()); 14] = [
    ("the_shell_examples_of_ftrace_work", the_shell_examples_of_ftrace_work),
    ("attributes_are_those_of_tracefs", attributes_are_those_of_tracefs),
    ("errors_are_the_services_errnos", errors_are_the_services_errnos),
    ("an_event_that_has_gone_is_not_seen_for_long", an_event_that_has_gone_is_not_seen_for_long),
    ("a_text_is_read_whole_and_anew_from_its_beginning", a_text_is_read_whole_and_anew),
    ("a_large_write_does_not_cut_lines", a_large_write_does_not_cut_lines),
    ("trace_pipe_waits_and_signals_end_the_wait", trace_pipe_waits_and_signals_end_the_wait),
    ("trace_pipe_does_not_wait_when_told_so", trace_pipe_does_not_wait_when_told_so),
    ("a_service_that_is_gone_may_come_back", a_service_that_is_gone_may_come_back),
    ("what_a_killed_process_left_is_taken_away", what_a_killed_process_left_is_taken_away),
    ("the_end_unmounts", the_end_unmounts),
    ("in_the_background_it_returns_when_it_is_ready", in_the_background_it_returns_when_ready),
    ("only_an_empty_folder_is_mounted_on", only_an_empty_folder_is_mounted_on),
    ("a_missing_device_is_told", a_missing_device_is_told),
];

fn main() -> ExitCode {
    let args = Arguments::from_args();
    let trials = CASES.map(|(name, run)| {
        Trial::ignorable_test(name, move || match lack() {
            Some(reason) => Ok(Completion::ignored_with(reason)),
            None => {
                run();
                Ok(Completion::Completed)
            }
        })
    });
    let conclusion = libtest_mimic::run(&args, trials.into());
    if let Some(reason) = lack().filter(|_| conclusion.num_ignored > 0) {
        #[expect(clippy::disallowed_macros, reason = "a test: its standard error is there")]
        {
            eprintln!("SKIPPED here ({}), all real mounts: {reason}\n", conclusion.num_ignored);
        }
    }
    conclusion.exit_code()
}

/// A reason that this place has no real mount.
fn lack() -> Option<String> {
    const SYS_ADMIN: u64 = 1 << 21;
    if let Err(error) = OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        return Some(format!("/dev/fuse: {error}"));
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    let may = u64::from_str_radix(mask.trim(), 16).unwrap() & SYS_ADMIN != 0;
    (!may).then(|| "only root may mount here (CAP_SYS_ADMIN)".to_owned())
}

/// A mounted service.
struct Mounted {
    // In the order in which they end.
    process: Program,
    point: Point,
    service: Service,
}

impl Mounted {
    fn new() -> Self {
        let point = Point::new();
        let service = Service::start(point.beside());
        let process = point.mount(&service);
        Self { process, point, service }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.point.path().join(name)
    }

    /// Output of a line of the shell in the mounted folder; it must succeed.
    fn shell(&self, line: &str) -> String {
        let (status, said) = shell(&format!("D={}; {line}", self.point.path().display()));
        assert_eq!(status, Some(0), "{line}: {said}");
        said
    }
}

/// The errno that a call failed with.
fn errno<T>(result: std::io::Result<T>) -> i32 {
    result.err().expect("it fails").raw_os_error().expect("by the kernel")
}

fn the_shell_examples_of_ftrace_work() {
    let m = Mounted::new();
    assert_eq!(m.shell("ls $D"), "events\nkprobe_events\ntrace\ntrace_pipe\n");
    m.shell("echo p:myprobe do_sys_open a0 a1 > $D/kprobe_events");
    m.shell("echo p:second vfs_read >> $D/kprobe_events");
    assert_eq!(m.shell("cat $D/kprobe_events"), "p:myprobe do_sys_open a0 a1\np:second vfs_read\n");
    let expected = ["PUT ", "p:myprobe do_sys_open a0 a1\n", "p:second vfs_read\n"];
    assert_eq!(m.service.tracer().written, expected, "truncated once");
    assert_eq!(m.shell("ls $D/events/kprobes"), "myprobe\nsecond\n");
    m.shell("echo 1 > $D/events/kprobes/myprobe/enable");
    assert!(m.service.tracer().events["myprobe"].1);
    assert_eq!(m.shell("cat $D/events/kprobes/{myprobe,second}/enable"), "1\n0\n");
    m.shell("echo 0 > $D/events/kprobes/myprobe/enable");
    m.shell("echo > $D/kprobe_events");
    assert!(m.service.tracer().events.is_empty());
    assert_eq!(
        m.shell("ls $D/events/kprobes; test -e $D/events/kprobes/myprobe || echo gone"),
        "gone\n"
    );
    assert_eq!(
        m.shell("echo '# none' | tee -a $D/kprobe_events; find $D -name enable | wc -l"),
        "# none\n1\n"
    );
    m.service.tracer().events.insert(ODD.to_owned(), ("f".to_owned(), true));
    assert_eq!(
        m.shell(&format!("ls $D/events/kprobes; cat \"$D/events/kprobes/{ODD}/enable\"")),
        format!("{ODD}\n1\n")
    );
}

fn attributes_are_those_of_tracefs() {
    let m = Mounted::new();
    let file = std::fs::metadata(m.file("kprobe_events")).unwrap();
    assert_eq!((file.mode() & 0o7777, file.len(), file.is_file()), (0o640, 0, true));
    assert_eq!(file.uid(), std::fs::metadata("/proc/self").unwrap().uid());
    assert_eq!(std::fs::metadata(m.file("trace_pipe")).unwrap().mode() & 0o777, 0o440);
    let folder = std::fs::metadata(m.file("events")).unwrap();
    assert!(folder.is_dir() && folder.mode() & 0o7777 == 0o750);
    let number = |name: &str| std::fs::metadata(m.file(name)).unwrap().ino();
    assert_eq!(number("trace"), number("trace"));
    assert_ne!(number("trace"), number("events"));
    let mut shown = std::fs::read_dir(m.point.path()).unwrap().map(Result::unwrap);
    let shown = shown.find(|entry| entry.file_name() == "trace").unwrap();
    assert_eq!(std::os::unix::fs::DirEntryExt::ino(&shown), number("trace"));
}

fn errors_are_the_services_errnos() {
    let m = Mounted::new();
    let events = m.file("kprobe_events");
    let append = || OpenOptions::new().append(true).open(&events).unwrap();
    assert_eq!(errno(append().write_all(b"nonsense\n")), libc::EINVAL);
    append().write_all(b"p:a f\n").unwrap();
    assert_eq!(errno(append().write_all(b"p:a f\n")), libc::EEXIST);
    let (status, said) = shell(&format!("echo p:a f >> {}", events.display()));
    assert!(status == Some(1) && said.contains("write error: File exists"), "{said}");
    std::fs::write(m.file("events/kprobes/a/enable"), "1").unwrap();
    assert_eq!(errno(File::create(&events)), libc::EBUSY, "open with O_TRUNC");
    assert_eq!(m.service.tracer().events.len(), 1);
    assert_eq!(errno(File::open(m.file("none"))), libc::ENOENT);
    assert_eq!(errno(File::create(m.file("new"))), libc::EACCES);
    assert_eq!(errno(std::fs::create_dir(m.file("new"))), libc::EPERM);
    assert_eq!(errno(std::fs::remove_file(&events)), libc::EPERM);
    assert_eq!(errno(std::fs::rename(&events, m.file("new"))), libc::EPERM);
    assert_eq!(errno(File::create(m.file("trace_pipe"))), libc::EACCES);
    let id = m.file("events/kprobes/a/id");
    assert_eq!(errno(OpenOptions::new().append(true).open(id).unwrap().write(b"1")), libc::EACCES);
    // What was open of an event that is gone says so.
    let mut enable =
        OpenOptions::new().append(true).open(m.file("events/kprobes/a/enable")).unwrap();
    m.service.tracer().events.clear();
    assert_eq!(errno(enable.write(b"0\n")), libc::ENOENT);
}

fn an_event_that_has_gone_is_not_seen_for_long() {
    let m = Mounted::new();
    let insert = |name: String| m.service.tracer().events.insert(name, ("f".to_owned(), false));
    for n in 0..50 {
        insert(format!("e{n}"));
    }
    let asked = || m.service.tracer().listed;
    // Names of 50 folders, and of two files in each.
    assert_eq!(m.shell("ls -lR $D/events | grep -c '^[-d]'"), "152\n");
    assert!(asked() < 50 * 2 * 4, "less than one for each part of each file's path: {}", asked());
    let event = |name: &str| m.file("events/kprobes").join(name);
    assert!(event("e7/enable").exists());
    m.service.tracer().events.remove("e7");
    until("its end is seen", || !event("e7").exists() && !event("e7/enable").exists());
    insert("new".to_owned());
    assert!(event("new/id").exists(), "at once");
    std::fs::write(m.file("kprobe_events"), "p:other f\n").unwrap();
    assert!(!event("e8").exists() && event("other").exists(), "what is written here, at once");
}

fn a_text_is_read_whole_and_anew() {
    let m = Mounted::new();
    let mut file = File::open(m.file("trace")).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("# trace 1\n") && text.len() == 200_010, "{}", text.len());
    assert_eq!(m.service.tracer().reads, 1, "one request for all of it");
    file.rewind().unwrap();
    let mut again = String::new();
    file.read_to_string(&mut again).unwrap();
    assert!(again.starts_with("# trace 2\n") && again.len() == text.len());
    assert_eq!(m.shell("wc -c < $D/trace"), "200010\n");
}

fn a_large_write_does_not_cut_lines() {
    let m = Mounted::new();
    let lines: Vec<String> =
        (0..8000).map(|i| format!("p:event_{i} function_{i}+0x10\n")).collect();
    let text = lines.concat();
    assert!(text.len() > 200_000);
    let mut file = OpenOptions::new().append(true).open(m.file("kprobe_events")).unwrap();
    // Wherever it begins in memory.
    let mut buffer = vec![b'#'; 1];
    buffer.extend_from_slice(text.as_bytes());
    assert_eq!(file.write(&buffer[1..]).unwrap(), text.len(), "one write(2)");
    drop(file);
    let tracer = m.service.tracer();
    assert!(tracer.written.len() > 1, "the kernel took it apart");
    assert!(tracer.written.iter().all(|written| written.ends_with('\n')));
    assert_eq!(tracer.written.concat(), text);
    drop(tracer);
    // A process that is forked meanwhile closes the file, too.
    m.service.tracer().events.clear();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                assert!(Command::new("true").status().unwrap().success());
            }
        });
        for _ in 0..20 {
            let mut file = OpenOptions::new().append(true).open(m.file("kprobe_events")).unwrap();
            let written = file.write(text.as_bytes());
            m.service.tracer().events.clear();
            if !matches!(written, Ok(len) if len == text.len()) {
                stop.store(true, Ordering::Relaxed);
                panic!("{written:?}");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    // The last line without its end comes with the file's end.
    let comment = format!("#{}", "x".repeat((64 << 10) - 1));
    let mut file = OpenOptions::new().append(true).open(m.file("kprobe_events")).unwrap();
    file.write_all(comment.as_bytes()).unwrap();
    drop(file);
    assert_eq!(m.service.tracer().written.last().unwrap(), &comment);
    let mut file = OpenOptions::new().append(true).open(m.file("kprobe_events")).unwrap();
    assert_eq!(file.write(comment.repeat(2).as_bytes()).unwrap(), comment.len());
    assert_eq!(errno(file.write(comment.as_bytes())), libc::EINVAL, "no line is that long");
}

fn trace_pipe_waits_and_signals_end_the_wait() {
    let m = Mounted::new();
    // What is started in the background ignores SIGINT, and so does what it starts.
    let with_signals = ["--default-signal=INT", "cat"];
    let cat = || Program::spawn(Command::new("env").args(with_signals).arg(m.file("trace_pipe")));
    let readers = |count| until("readers", || m.service.tracer().readers() == count);
    let mut first = cat();
    readers(1);
    first.wait_until_it_reads();
    let mut second = cat();
    readers(2);
    second.wait_until_it_reads();
    assert_eq!(m.shell("cat $D/kprobe_events; ls $D | wc -l"), "4\n", "others do not wait");
    m.service.tracer().emit(0, "one\n");
    m.service.tracer().emit(1, "two\n");
    first.wait_until_it_says("one\n");
    second.wait_until_it_says("two\n");
    m.service.tracer().emit(0, "three\n");
    first.wait_until_it_says("one\nthree\n");
    first.wait_until_it_reads();
    first.signal("INT");
    assert!(!first.wait().success());
    readers(1);
    second.wait_until_it_reads();
    second.signal("KILL");
    assert!(!second.wait().success());
    readers(0);
    // A handler runs, and the reader goes on where it was.
    let line =
        "trap 'echo caught' USR1; exec 3< $D/trace_pipe; while read -u 3 x; do echo got $x; done";
    let mut handler = Program::shell(&format!("D={}; {line}", m.point.path().display()));
    readers(1);
    handler.wait_until_it_reads();
    handler.signal("USR1");
    handler.wait_until_it_says("caught\n");
    m.service.tracer().emit(0, "more\n");
    handler.wait_until_it_says("got more\n");
}

fn trace_pipe_does_not_wait_when_told_so() {
    let m = Mounted::new();
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let mut pipe = options.open(m.file("trace_pipe")).unwrap();
    assert_eq!(m.service.tracer().readers(), 0, "nothing is read yet");
    let mut buffer = [0; 64];
    assert_eq!(errno(pipe.read(&mut buffer)), libc::EAGAIN);
    assert_eq!(m.service.tracer().readers(), 1);
    m.service.tracer().emit(0, "a line\n");
    let mut read = 0;
    until("the line", || match pipe.read(&mut buffer) {
        Ok(len) => {
            read = len;
            true
        }
        Err(error) => error.raw_os_error() != Some(libc::EAGAIN),
    });
    assert_eq!(&buffer[..read], b"a line\n");
    drop(pipe);
    until("the end of its stream", || m.service.tracer().readers() == 0);
}

fn a_service_that_is_gone_may_come_back() {
    let mut m = Mounted::new();
    let mut open = File::open(m.file("kprobe_events")).unwrap();
    let mut cat = Program::spawn(Command::new("cat").arg(m.file("trace_pipe")));
    until("a reader", || m.service.tracer().readers() == 1);
    cat.wait_until_it_reads();
    m.service.stop();
    assert_eq!(cat.wait().code(), Some(1));
    until("a clean error", || cat.said().contains("Input/output error"));
    assert_eq!(errno(std::fs::read(m.file("kprobe_events"))), libc::ECONNREFUSED);
    assert_eq!(errno(open.read(&mut [0; 9])), libc::ECONNREFUSED);
    assert_eq!(
        errno(std::fs::read_dir(m.point.path()).unwrap().next().unwrap()),
        libc::ECONNREFUSED
    );
    assert!(std::fs::metadata(m.point.path()).unwrap().is_dir(), "the mount is there");
    m.service.resume();
    std::fs::write(m.file("kprobe_events"), "p:a f\n").unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "p:a f\n");
    assert!(m.process.ended().is_none());
}

fn what_a_killed_process_left_is_taken_away() {
    let mut m = Mounted::new();
    let mut cat = Program::spawn(Command::new("cat").arg(m.file("trace_pipe")));
    until("a reader", || m.service.tracer().readers() == 1);
    cat.wait_until_it_reads();
    m.process.signal("KILL");
    m.process.wait();
    assert_eq!(cat.wait().code(), Some(1));
    until("a clean error", || cat.said().contains("connection abort"));
    assert_eq!(errno(std::fs::metadata(m.point.path())), libc::ENOTCONN);
    let again = m.point.mount(&m.service);
    assert!(again.said().contains("took away the mount that a process left"), "{}", again.said());
    m.process = again;
    assert_eq!(m.shell("ls $D | head -1"), "events\n");
    m.process.signal("KILL");
    m.process.wait();
    let point = m.point.path();
    let mut unmount = Program::exoprobe(&[Path::new("mount"), &point, Path::new("--unmount")]);
    assert!(unmount.wait().success(), "{}", unmount.said());
    assert!(!m.point.is_mounted());
}

fn the_end_unmounts() {
    for signal in ["INT", "TERM", "HUP"] {
        let mut m = Mounted::new();
        let mut cat = Program::spawn(Command::new("cat").arg(m.file("trace_pipe")));
        cat.wait_until_it_reads();
        m.process.signal(signal);
        assert!(m.process.wait().success(), "{}", m.process.said());
        assert!(!m.point.is_mounted());
        assert!(cat.wait().success(), "as at the end of the service: {}", cat.said());
    }
    // Whoever holds on to it does not hold it up.
    let mut m = Mounted::new();
    let mut open = File::open(m.file("trace")).unwrap();
    m.process.signal("TERM");
    assert!(m.process.wait().success(), "{}", m.process.said());
    until("a word", || m.process.said().contains("still in use"));
    assert!(!m.point.is_mounted());
    assert!(open.read(&mut [0; 9]).is_err());
    // Somebody else unmounts.
    let mut m = Mounted::new();
    let point = m.point.path();
    let unmount = || Program::exoprobe(&[Path::new("mount"), Path::new("--unmount"), &point]);
    let open = File::open(m.file("trace")).unwrap();
    let mut busy = unmount();
    assert_eq!(busy.wait().code(), Some(1));
    until("a reason", || busy.said().contains("in use"));
    drop(open);
    until("the mount's end", || unmount().wait().success());
    assert!(m.process.wait().success() && !m.point.is_mounted());
    let mut none = unmount();
    assert_eq!(none.wait().code(), Some(1));
    until("a reason", || none.said().contains("not a mount of exoprobe"));
}

fn in_the_background_it_returns_when_ready() {
    let point = Point::new();
    let service = Service::start(point.beside());
    let (dir, socket, log) = (point.path(), service.socket(), point.beside().join("log"));
    let flags = ["mount", "--background", "--socket"].map(Path::new);
    let mount = |dir: &Path, log: &Path| {
        let more = [socket, Path::new("--log"), log, dir];
        let mut program = Program::exoprobe(&[&flags[..], &more[..]].concat());
        (program.wait().code(), program)
    };
    let unmount = || Program::exoprobe(&[Path::new("mount"), Path::new("--unmount"), &dir]).wait();
    // The file is there at once; the pipes of the caller are not held open.
    let (status, mounted) = mount(&dir, &log);
    assert!(status == Some(0) && dir.join("kprobe_events").exists(), "{}", mounted.said());
    mounted.wait_for_closed_output();
    assert!(mounted.said().contains("`exoprobe mount --unmount` ends it"), "{}", mounted.said());
    // What is wrong is said by the caller, with its status.
    let (status, again) = mount(&dir, &log);
    assert_eq!(status, Some(1), "{}", again.said());
    until("a reason", || again.said().contains("another `exoprobe mount`, which runs"));
    let (status, missing) = mount(&point.beside().join("missing"), &log);
    assert_eq!(status, Some(1), "{}", missing.said());
    until("a reason", || missing.said().contains("does not exist"));
    let (status, no_log) = mount(&dir, &dir.join("no/log"));
    assert_eq!(status, Some(1), "{}", no_log.said());
    until("a reason", || no_log.said().contains("cannot write"));
    assert!(unmount().success() && !point.is_mounted());
    until("the end", || std::fs::read_to_string(&log).unwrap().contains("was unmounted"));
    // Without a log.
    let program = env!("CARGO_BIN_EXE_exoprobe");
    let (socket, dir) = (socket.display(), dir.display());
    let line =
        format!("{program} mount --background --socket {socket} {dir} && cat {dir}/kprobe_events");
    let mut shell = Program::shell(&line);
    assert!(shell.wait().success(), "{}", shell.said());
    assert!(unmount().success() && !point.is_mounted());
}

fn only_an_empty_folder_is_mounted_on() {
    let mut m = Mounted::new();
    let refused = |dir: &Path, socket: &Path, status: i32, word: &str| {
        let mut program =
            Program::exoprobe(&[Path::new("mount"), dir, Path::new("--socket"), socket]);
        assert_eq!(program.wait().code(), Some(status), "{}", program.said());
        until(word, || program.said().contains(word));
    };
    let (beside, socket) = (m.point.beside(), m.service.socket().to_owned());
    refused(&m.point.path(), &socket, 1, "another `exoprobe mount`, which runs");
    refused(&beside.join("missing"), &socket, 1, "does not exist");
    refused(beside, &socket, 1, "not empty (it has \"");
    refused(&socket, &socket, 1, "not a folder");
    let empty = beside.join("empty");
    std::fs::create_dir(&empty).unwrap();
    refused(&empty, &beside.join("nobody"), 3, "`exoprobe run` running?");
    assert!(!std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains("/empty "));
    assert_eq!(m.shell("ls $D | wc -l"), "4\n", "the first is as it was");
    assert!(m.process.ended().is_none());
}

fn a_missing_device_is_told() {
    let point = Point::new();
    let service = Service::start(point.beside());
    let program = env!("CARGO_BIN_EXE_exoprobe");
    let line = format!(
        "unshare --mount sh -c 'mount -t tmpfs none /dev && exec {program} mount {} --socket {}'",
        point.path().display(),
        service.socket().display()
    );
    let (status, said) = shell(&line);
    assert!(status == Some(1) && said.contains("modprobe fuse"), "{status:?}: {said}");
}
