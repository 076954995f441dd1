//! The program at a terminal: a pseudo-terminal, and a fake service after a socket.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Json, Router};
use serde_json::json;
use tempfile::TempDir;

/// More than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);
/// The terminal's rows and columns.
const SIZE: (u16, u16) = (24, 80);
const EVENT: &str = r#"{"seq":1,"time":1.5,"vcpu":0,"pid":7,"comm":"\u001b[2J","group":"kprobes","event":"open","symbol_name":"do_open","offset":0,"addr":"0x14","args":{}}"#;
const PROBES: &str = r#"[{"id":1,"kind":"k","group":"kprobes","event":"open","symbol_name":"do_open",
    "offset":0,"addr":"0x14","state":"armed","flags":[],"reason":null,"hits":7,"nmissed":0,"recorded":7,"filtered":0,
    "lost":0,"displaced":"boost"}]"#;

/// The input that a guest got, and whether its queue was full once already.
type Input = Arc<Mutex<(Vec<u8>, bool)>>;
/// The sizes that its virtio console was given.
type Sizes = Arc<Mutex<Vec<serde_json::Value>>>;

/// A service that has an event, a probe, and a guest that has printed one line.
struct Service {
    dir: TempDir,
    input: Input,
    sizes: Sizes,
    end: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Service {
    fn start() -> Self {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("socket");
        let (end, ended) = tokio::sync::oneshot::channel();
        let (listening, listens) = mpsc::channel();
        let (input, sizes) = (Input::default(), Sizes::default());
        let given = Arc::clone(&sizes);
        let resized = async move |Json(size)| {
            given.lock().unwrap().push(size);
            StatusCode::NO_CONTENT
        };
        let router = Router::new()
            .route("/v1/events", get(async || EVENT))
            .route("/v1/probes", get(async || PROBES))
            .route("/v1/vm/serial/{port}", get(printed).post(typed))
            .route("/v1/vm/console", get(printed).post(typed))
            .route("/v1/vm/console/size", put(resized))
            .with_state(Arc::clone(&input));
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let listener = tokio::net::UnixListener::bind(path).unwrap();
                listening.send(()).unwrap();
                tokio::select! {
                    served = axum::serve(listener, router) => served.unwrap(),
                    _ = ended => {}
                }
            });
        });
        listens.recv().unwrap();
        Self { dir, input, sizes, end: Some(end), thread: Some(thread) }
    }

    /// Waits until the guest got this input.
    fn wait_for_input(&self, wanted: &[u8]) {
        let end = Instant::now() + PATIENCE;
        while self.input.lock().unwrap().0 != wanted {
            assert!(Instant::now() < end, "{:?}", self.input.lock().unwrap());
            thread::sleep(LOOK);
        }
    }

    /// Waits until the virtio console was given these sizes, as (columns, rows), and no others.
    fn wait_for_sizes(&self, wanted: &[(u16, u16)]) {
        let size = |(columns, rows): &(u16, u16)| json!({"columns": columns, "rows": rows});
        let wanted: Vec<_> = wanted.iter().map(size).collect();
        let end = Instant::now() + PATIENCE;
        while *self.sizes.lock().unwrap() != wanted {
            assert!(Instant::now() < end, "{:?}", self.sizes.lock().unwrap());
            thread::sleep(LOOK);
        }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// Nobody answers any more when this returns.
    fn stop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    /// The program, with nothing in its environment that says what to do about colours.
    fn exoprobe(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_exoprobe"));
        command.arg("--socket").arg(self.socket()).args(args).env("TERM", "xterm-256color");
        for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI", "COLUMNS", "LINES"] {
            command.env_remove(name);
        }
        command
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stop();
    }
}

/// One line of output, and a stream without an end where the client follows.
async fn printed(Query(query): Query<HashMap<String, String>>) -> Response {
    match query.contains_key("follow") {
        true => Body::from_stream(futures_util::stream::pending::<io::Result<Vec<u8>>>())
            .into_response(),
        false => ([("exoprobe-next-offset", "8")], "login:\r\n").into_response(),
    }
}

/// Takes input but for the first time: then the queue is full.
async fn typed(State(input): State<Input>, bytes: Bytes) -> Response {
    let mut input = input.lock().unwrap();
    if !std::mem::replace(&mut input.1, true) {
        let kind = [("content-type", "application/problem+json")];
        let problem = r#"{"status":503,"title":"","detail":"full","code":"EAGAIN"}"#;
        return (StatusCode::SERVICE_UNAVAILABLE, kind, problem).into_response();
    }
    input.0.extend_from_slice(&bytes);
    StatusCode::NO_CONTENT.into_response()
}

/// A terminal, and what was written to it.
struct Terminal {
    keyboard: File,
    device: OwnedFd,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn open() -> Self {
        let (mut keyboard, mut device) = (-1, -1);
        let size = libc::winsize { ws_row: SIZE.0, ws_col: SIZE.1, ws_xpixel: 0, ws_ypixel: 0 };
        let (name, mode) = (std::ptr::null_mut(), std::ptr::null());
        // SAFETY: the descriptors and the size are our own; name and mode may be null.
        let opened = unsafe { libc::openpty(&mut keyboard, &mut device, name, mode, &size) };
        assert_eq!(opened, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: openpty has just opened it, and nobody else has it.
        let keyboard = unsafe { File::from_raw_fd(keyboard) };
        // SAFETY: as above.
        let device = unsafe { OwnedFd::from_raw_fd(device) };
        let written = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, noted) = (keyboard.try_clone().unwrap(), Arc::clone(&written));
        // It ends when all of the device is closed.
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(len @ 1..) = reader.read(&mut buffer) {
                noted.lock().unwrap().extend_from_slice(&buffer[..len]);
            }
        });
        Self { keyboard, device, written }
    }

    fn stdio(&self) -> Stdio {
        self.device.try_clone().unwrap().into()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    /// Waits until what was written is as wanted.
    fn wait(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let text = self.text();
            if wanted(&text) {
                return text;
            }
            assert!(Instant::now() < end, "no {what}: {text:?}");
            thread::sleep(LOOK);
        }
    }

    /// Changes its size, which signals the programs whose controlling terminal it is.
    fn resize(&self, (rows, columns): (u16, u16)) {
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the descriptor is our own, and the call only reads the size.
        let set = unsafe { libc::ioctl(self.device.as_raw_fd(), libc::TIOCSWINSZ, &size) };
        assert_eq!(set, 0, "{}", io::Error::last_os_error());
    }

    /// How it takes what is typed: flags, and keys that mean something.
    fn mode(&self) -> (libc::tcflag_t, [libc::cc_t; libc::NCCS]) {
        let mut mode = MaybeUninit::<libc::termios>::uninit();
        // SAFETY: the pointer is to a termios of our own, which the call may fill.
        let told = unsafe { libc::tcgetattr(self.device.as_raw_fd(), mode.as_mut_ptr()) };
        assert_eq!(told, 0);
        // SAFETY: the call above succeeded, so it is filled.
        let mode = unsafe { mode.assume_init() };
        (mode.c_lflag, mode.c_cc)
    }
}

fn finish(mut child: Child) -> Output {
    let end = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() >= end {
            child.kill().unwrap();
            panic!("it does not end");
        }
        thread::sleep(LOOK);
    }
    child.wait_with_output().unwrap()
}

fn run(command: &mut Command) -> Output {
    let command = command.stdin(Stdio::null()).stderr(Stdio::piped());
    finish(command.spawn().unwrap())
}

#[test]
fn events_are_in_colour_where_a_terminal_shows_them() {
    let service = Service::start();
    let shown = |command: &mut Command| {
        let terminal = Terminal::open();
        assert!(run(command.stdout(terminal.stdio())).status.success());
        terminal
            .wait("event", |text| text.contains("(\u{1b}[36mdo_open") || text.contains("(do_open"))
    };
    let piped = |command: &mut Command| {
        let output = run(command.stdout(Stdio::piped()));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let events = |args: &[&str]| service.exoprobe(&[&["events"], args].concat());
    let colored = shown(&mut events(&[]));
    assert!(colored.contains("\u{1b}[36mdo_open+0x0\u{1b}[0m"), "{colored:?}");
    assert!(
        !colored.contains("\u{1b}[2J") && colored.contains("\\u{1b}[2J"),
        "the guest's: {colored:?}"
    );
    assert!(!shown(events(&[]).env("NO_COLOR", "1")).contains('\u{1b}'));
    assert!(!shown(events(&[]).env("TERM", "dumb")).contains('\u{1b}'));
    assert!(!shown(&mut events(&["--color", "never"])).contains('\u{1b}'));
    assert!(!piped(&mut events(&[])).contains('\u{1b}'));
    assert!(piped(events(&["--color", "always"]).env("NO_COLOR", "1")).contains("\u{1b}[36m"));
}

/// `top` at a terminal, once it has drawn twice.
fn top(service: &Service, terminal: &Terminal) -> Child {
    let mut command = service.exoprobe(&["top", "--interval", "0.1"]);
    command.stdin(terminal.stdio()).stdout(terminal.stdio()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    terminal.wait("two tables", |text| text.matches("hits/s").count() >= 2);
    child
}

/// Checks that the terminal is as it was, and that nothing scrolled.
fn check_given_back(terminal: &Terminal, mode: (libc::tcflag_t, [libc::cc_t; libc::NCCS])) {
    let text = terminal.wait("end", |text| text.ends_with("\u{1b}[?25h\u{1b}[?1049l"));
    assert!(text.starts_with("\u{1b}[?1049h\u{1b}[?25l"), "{text:?}");
    assert!(!text.contains('\n'), "{text:?}");
    assert!(text.contains("do_open") && text.contains("int3"), "{text:?}");
    assert_eq!(terminal.mode(), mode);
}

#[test]
fn top_gives_the_terminal_back_by_q_and_by_signals() {
    let service = Service::start();
    for end in [None, Some(libc::SIGINT), Some(libc::SIGTERM)] {
        let mut terminal = Terminal::open();
        let before = terminal.mode();
        let child = top(&service, &terminal);
        assert_eq!(terminal.mode().0 & (libc::ECHO | libc::ICANON), 0, "keys are seen at once");
        match end {
            None => terminal.keyboard.write_all(b"xq").unwrap(),
            Some(number) => signal(&child, number),
        }
        let output = finish(child);
        assert!(output.status.success(), "{end:?}: {output:?}");
        check_given_back(&terminal, before);
    }
}

#[test]
fn top_says_that_the_service_went_away_when_the_terminal_is_as_before() {
    let mut service = Service::start();
    let terminal = Terminal::open();
    let before = terminal.mode();
    let child = top(&service, &terminal);
    service.stop();
    let output = finish(child);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.starts_with("error: the service went away: "), "{told}");
    assert_eq!(output.status.code(), Some(3));
    check_given_back(&terminal, before);
}

#[test]
fn what_is_for_no_terminal_or_for_one_only_is_refused() {
    let service = Service::start();
    let output = run(service.exoprobe(&["top"]).stdout(Stdio::piped()));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && told.contains("--once"), "{told}");
    let terminal = Terminal::open();
    let output = run(service.exoprobe(&["export"]).stdout(terminal.stdio()));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && told.contains("--output"), "{told}");
    assert_eq!(terminal.text(), "");
    let output = run(service.exoprobe(&["export"]).stdout(Stdio::piped()));
    assert!(
        output.status.success() && output.stdout.first() == Some(&0x0a),
        "a trace's first field"
    );
}

#[test]
fn a_console_at_a_terminal_gets_every_key_and_is_left_by_the_escape_key() {
    let service = Service::start();
    let mut terminal = Terminal::open();
    let before = terminal.mode();
    let mut command = service.exoprobe(&["vm", "console", "--follow"]);
    command.stdin(terminal.stdio()).stdout(terminal.stdio()).stderr(terminal.stdio());
    let child = command.spawn().unwrap();
    terminal.wait("greeting", |text| text.contains("login:") && text.contains("Ctrl-] leaves"));
    let raw = libc::ECHO | libc::ICANON | libc::ISIG;
    assert_eq!(terminal.mode().0 & raw, 0, "keys are the guest's");
    // No line end, and Ctrl-C, which the guest's own terminal makes a signal of.
    terminal.keyboard.write_all(b"ro\x03").unwrap();
    service.wait_for_input(b"ro\x03");
    terminal.keyboard.write_all(b"\x1d").unwrap();
    assert!(finish(child).status.success());
    assert_eq!(terminal.mode(), before);
    service.wait_for_input(b"ro\x03");
}

/// Sends a signal to our child, which was not waited for yet.
fn signal(child: &Child, number: libc::c_int) {
    let pid = libc::pid_t::try_from(child.id()).unwrap();
    // SAFETY: it is our child, so the number is its own.
    assert_eq!(unsafe { libc::kill(pid, number) }, 0);
}

#[test]
fn a_virtio_console_has_the_terminals_size_now_and_when_it_changes() {
    let service = Service::start();
    let mut terminal = Terminal::open();
    let before = terminal.mode();
    let mut command = service.exoprobe(&["vm", "console", "--hvc", "--follow"]);
    command.stdin(terminal.stdio()).stdout(terminal.stdio()).stderr(terminal.stdio());
    let child = command.spawn().unwrap();
    service.wait_for_sizes(&[(SIZE.1, SIZE.0)]);
    terminal.wait("greeting", |text| text.contains("login:") && text.contains("Ctrl-] leaves"));
    assert_eq!(terminal.mode().0 & (libc::ECHO | libc::ICANON | libc::ISIG), 0);
    terminal.resize((50, 132));
    signal(&child, libc::SIGWINCH);
    service.wait_for_sizes(&[(SIZE.1, SIZE.0), (132, 50)]);
    // A terminal that loses its size leaves the guest's as it was.
    terminal.resize((0, 0));
    signal(&child, libc::SIGWINCH);
    terminal.keyboard.write_all(b"vi\x1a").unwrap();
    service.wait_for_input(b"vi\x1a");
    terminal.keyboard.write_all(b"q\x1d").unwrap();
    assert!(finish(child).status.success());
    assert_eq!(terminal.mode(), before);
    service.wait_for_input(b"vi\x1a");
    service.wait_for_sizes(&[(SIZE.1, SIZE.0), (132, 50)]);
}

#[test]
fn a_console_without_a_terminal_or_on_a_serial_port_has_no_size() {
    let service = Service::start();
    let terminal = Terminal::open();
    let mut command = service.exoprobe(&["vm", "console", "--hvc", "--follow"]);
    command.stdin(Stdio::piped()).stdout(terminal.stdio()).stderr(Stdio::piped());
    let mut piped = command.spawn().unwrap();
    piped.stdin.take().unwrap().write_all(b"ls\n").unwrap();
    service.wait_for_input(b"ls\n");
    signal(&piped, libc::SIGINT);
    assert!(finish(piped).status.success());
    let mut command = service.exoprobe(&["vm", "console", "--follow"]);
    command.stdin(terminal.stdio()).stdout(terminal.stdio()).stderr(terminal.stdio());
    let serial = command.spawn().unwrap();
    terminal.wait("greeting", |text| text.contains("Ctrl-] leaves"));
    // Its handler would be there by then: SIGWINCH is ignored by default.
    signal(&serial, libc::SIGWINCH);
    (&terminal.keyboard).write_all(b"x").unwrap();
    service.wait_for_input(b"ls\nx");
    (&terminal.keyboard).write_all(b"\x1d").unwrap();
    assert!(finish(serial).status.success());
    service.wait_for_sizes(&[]);
    let usage =
        run(service.exoprobe(&["vm", "console", "--hvc", "--port", "0"]).stdout(Stdio::piped()));
    let told = String::from_utf8(usage.stderr).unwrap();
    assert!(usage.status.code() == Some(2) && told.contains("cannot be used with"), "{told}");
}

#[test]
fn piped_input_arrives_whole_and_output_goes_on_after_its_end() {
    let service = Service::start();
    let mut command = service.exoprobe(&["vm", "console", "--follow", "--port", "1"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = b"getpid 5\x1d\n".repeat(2000);
    child.stdin.take().unwrap().write_all(&lines).unwrap();
    service.wait_for_input(&lines);
    assert!(child.try_wait().unwrap().is_none(), "it follows the output");
    signal(&child, libc::SIGINT);
    let output = finish(child);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"login:\r\n");
}

#[test]
fn errors_are_one_json_object_where_json_is_asked_for() {
    let service = Service::start();
    let error = |args: &[&str], status: i32| {
        let output = run(service.exoprobe(args).stdout(Stdio::piped()));
        assert_eq!(output.status.code(), Some(status), "{args:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let document = |args: &[&str], status: i32| -> serde_json::Value {
        let text = error(args, status);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{args:?}: {error}: {text}"))
    };
    let refused = document(&["--json", "probe", "show", "nothing"], 1);
    assert_eq!((&refused["status"], &refused["code"]), (&404.into(), &"HTTP 404".into()));
    let usage = document(&["probe", "show", "--json", "--no-such-flag"], 2);
    assert_eq!(usage["code"], "EINVAL");
    assert!(usage["detail"].as_str().unwrap().contains("--no-such-flag"), "{usage}");
    let own = document(&["--json", "probe", "add", "# nothing"], 2);
    assert!(own["detail"].as_str().unwrap().contains("no definition"), "{own}");
    let host = document(&["--json", "doctor", "--kvm", "/nonexistent/kvm"], 1);
    assert_eq!(host["code"], "ENODEV", "{host}");
    // The last one wins, so that no service is there.
    let nobody = document(&["--json", "ps", "--socket", "/nonexistent/socket"], 3);
    assert_eq!(nobody["code"], "ENOENT");
    assert!(nobody["hint"].as_str().unwrap().contains("exoprobe run"), "{nobody}");
    assert!(error(&["probe", "show", "--no-such-flag"], 2).starts_with("error: "));
    let help = run(service.exoprobe(&["--json", "--help"]).stdout(Stdio::piped()));
    assert!(help.status.success() && help.stderr.is_empty() && !help.stdout.is_empty());
}
