//! Lines and the commands that they are.

use super::*;
use crate::text::Shown;

fn reason(line: &[u8]) -> String {
    let error = parse(line).unwrap_err();
    format!("{}: {}", Shown(error.command), error.reason)
}

#[test]
fn a_command_may_have_a_number() {
    assert_eq!(split_number(b"#7 ping"), (Some(7), &b" ping"[..]));
    assert_eq!(split_number(b"#4294967295"), (Some(u32::MAX), &b""[..]));
    for line in [&b"ping"[..], b"", b"#", b"# 7", b"#x ping", b"#+7 ping", b"#4294967296 ping"] {
        assert_eq!(split_number(line), (None, line));
    }
}

#[test]
fn parses_every_command() {
    let cases: [(&[u8], Command<'_>); 50] = [
        (b"getpid 1000", Command::Work(Work::Getpid(1000))),
        (b"open /dev/null 3", Command::Work(Work::Open(b"/dev/null", 3))),
        (b"fork 2", Command::Work(Work::Fork(2))),
        (b"write 4", Command::Work(Work::Write(4))),
        (b"mmap 5", Command::Work(Work::Mmap(5))),
        (b"spin 10", Command::Work(Work::Spin(10))),
        (b"gap 10", Command::Work(Work::Gap(10))),
        (b"sleep 0", Command::Work(Work::Sleep(0))),
        (b"trap 6", Command::Work(Work::Trap(6))),
        (b"badptr 8", Command::Work(Work::Badptr(8))),
        (b"vectors 9", Command::Work(Work::Vectors(9))),
        (b"diskread /dev/vda 3", Command::Work(Work::Diskread(b"/dev/vda", 3))),
        (b"diskwrite /dev/vdb 4", Command::Work(Work::Diskwrite(b"/dev/vdb", 4))),
        (b"words /dev/hwrng 5", Command::Work(Work::Words(b"/dev/hwrng", 5))),
        (b"vsock-send 7 3", Command::Work(Work::VsockSend(7, 3))),
        (b"vsock-echo 4294967295", Command::Work(Work::VsockEcho(u32::MAX))),
        (b"stat /dev 2", Command::Work(Work::Calls(SystemCall::Stat(b"/dev"), 2))),
        (b"mkdir /dev 3", Command::Work(Work::Calls(SystemCall::Mkdir(b"/dev"), 3))),
        (b"exec /none 4", Command::Work(Work::Calls(SystemCall::Exec(b"/none"), 4))),
        (b"setuid 5", Command::Work(Work::Calls(SystemCall::Setuid, 5))),
        (b"kill 6", Command::Work(Work::Calls(SystemCall::Kill, 6))),
        (b"sync 7", Command::Work(Work::Calls(SystemCall::Sync, 7))),
        (b"tcp 2 8", Command::Work(Work::Tcp { kib: 2, count: 8 })),
        (b"tcp-full 2500", Command::Work(Work::TcpFull(2500))),
        (b"unix 4096 9", Command::Work(Work::Unix { len: 4096, count: 9 })),
        (b"oom 1", Command::Work(Work::Oom(1))),
        (
            b"diskio sync /dev/vda 64 7",
            Command::Work(Work::Diskio { io: Io::Sync, path: b"/dev/vda", kib: 64, count: 7 }),
        ),
        (b"echo /dev/hvc0 6", Command::Echo { path: b"/dev/hvc0", count: 6 }),
        (b"winsize /dev/hvc0 120", Command::Winsize { path: b"/dev/hvc0", columns: 120 }),
        (b"width", Command::Width),
        (b"cpu 1", Command::Cpu(1)),
        (b"crowd 10000", Command::Crowd(10_000)),
        (b"insmod ttynull", Command::Insmod(Module::new(b"ttynull").unwrap())),
        (b"rmmod 8250-x_y", Command::Rmmod(Module::new(b"8250-x_y").unwrap())),
        (b"mount tracefs /t", Command::Mount { kind: b"tracefs", target: b"/t" }),
        (b"put /t/e  p:own a+4 $1 ", Command::Put { path: b"/t/e", line: b"p:own a+4 $1" }),
        (b"number /t/p own", Command::Number { path: b"/t/p", word: b"own" }),
        (b"attach fentry 77", Command::Attach { end: End::Fentry, function: 77 }),
        (b"calls fexit", Command::Calls(End::Fexit)),
        (b"detach fentry", Command::Detach(End::Fentry)),
        (
            b"reattach fexit 7 8 fork 9",
            Command::Reattach { end: End::Fexit, function: 7, times: 8, work: Work::Fork(9) },
        ),
        (
            b"toggle /t/e 5 getpid 7",
            Command::Toggle { path: b"/t/e", times: 5, work: Work::Getpid(7) },
        ),
        (b"  ping\t", Command::Ping),
        (b"counters", Command::Counters),
        (b"poweroff", Command::Poweroff),
        (b"reboot", Command::Reboot),
        (b"panic", Command::Panic),
        (b"spawn 1 getpid 7", Command::Spawn { cpu: 1, work: Work::Getpid(7) }),
        (b"par 2 open /a 9", Command::Par { children: 2, work: Work::Open(b"/a", 9) }),
        (b"par 64 mmap 4294967295", Command::Par { children: 64, work: Work::Mmap(4_294_967_295) }),
    ];
    for (line, command) in cases {
        assert_eq!(parse(line), Ok(Some(command)));
    }
}

#[test]
fn finds_the_number_after_a_word() {
    let profile = b"  own      17     0\n  other    3      0\nlast";
    let found = [&b"own"[..], b"other", b"last", b"ow", b"17"].map(|w| number_after(profile, w));
    assert_eq!(found, [Some(17), Some(3), None, None, Some(0)]);
}

#[test]
fn an_empty_line_is_no_command() {
    assert_eq!(parse(b""), Ok(None));
    assert_eq!(parse(b"  \t"), Ok(None));
}

#[test]
fn says_what_is_wrong() {
    let cases: [(&[u8], &str); 31] = [
        (b"frob 1", "frob: unknown command"),
        (b"getpid", "getpid: count missing"),
        (b"getpid x1", "getpid: bad number x1"),
        (b"getpid -1", "getpid: bad number -1"),
        (b"getpid 4294967296", "getpid: bad number 4294967296"),
        (b"getpid 99999999999999999999999", "getpid: bad number 99999999999999999999999"),
        (b"getpid 1 2", "getpid: unexpected argument 2"),
        (b"open /x", "open: count missing"),
        (b"put /x ", "put: text missing"),
        (b"number /x a b", "number: unexpected argument b"),
        (b"winsize /dev/hvc0", "winsize: columns missing"),
        (b"diskio trim /x 4 1", "diskio: bad kind trim: read, write or sync"),
        (b"diskio read /x 65 1", "diskio: bad number 65"),
        (b"diskio read /x 0 1", "diskio: bad number 0"),
        (b"vsock-echo 4294967296", "vsock-echo: bad number 4294967296"),
        (b"vsock-send 7", "vsock-send: count missing"),
        (b"vsock-echo", "vsock-echo: port missing"),
        (b"unix 4097 1", "unix: bad number 4097"),
        (b"setuid", "setuid: count missing"),
        (b"attach fmod 1", "attach: fmod is neither fentry nor fexit"),
        (b"attach fexit -1", "attach: bad number -1"),
        (b"calls", "calls: fentry or fexit missing"),
        (b"insmod", "insmod: module name missing"),
        (b"udp 10.0.2.2 5", "udp: bad address 10.0.2.2: give 10.0.2.2:7"),
        (b"insmod a b", "insmod: unexpected argument b"),
        (b"rmmod ../a", "rmmod: bad module name ../a: 1 to 55 letters, digits, _ and -"),
        (b"insmod a.ko", "insmod: bad module name a.ko: 1 to 55 letters, digits, _ and -"),
        (b"spawn 0 rmmod a", "spawn: cannot run rmmod in a child"),
        (b"spawn 0 par 2 getpid 1", "spawn: cannot run par in a child"),
        (b"par 0 getpid 1", "par: the number of children must be 1 to 64"),
        (b"par 65 getpid 1", "par: the number of children must be 1 to 64"),
    ];
    for (line, expected) in cases {
        assert_eq!(reason(line), expected);
    }
}
