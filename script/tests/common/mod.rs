//! A kernel, a guest and short forms for tests of whole scripts.

use std::sync::Arc;

use exoprobe_script::{
    Collected, Datum, Format, Hit, Host, Kernel, LimitError, Limits, Memory, Options, Outcome,
    Parameter, Program, Prototype, RecordRef, Runtime, Script, SymbolOffset, Type, check,
};

const STRUCTS: &str = "
struct inner { int a; long b; };
struct list { struct list *next; int value; };
struct file { int pad; unsigned int low:3; int high:5; struct inner in; struct list *list; char name[8]; int words[4]; struct { short s; }; };
";

/// A kernel with a few functions, system calls and symbols.
pub(crate) struct Functions;

impl Kernel for Functions {
    fn functions(&self, module: Option<&str>, pattern: &str) -> Vec<Arc<str>> {
        let all = ["vfs_open", "vfs_read", "vfs_write", "xfs_open"];
        let of_module = |name: &&&str| module != Some("xfs") || name.starts_with("xfs");
        let fits = |name: &&&str| match pattern.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => **name == pattern,
        };
        all.iter().filter(of_module).filter(fits).map(|name| Arc::from(*name)).collect()
    }

    fn prototype(&self, function: &str) -> Option<Prototype> {
        let file = Type::pointer(Type::Record(RecordRef::Named("file".into())));
        let parameter = |name: &str, ty: Type| Parameter { name: name.into(), ty };
        let count = Type::Integer { bytes: 4, signed: false };
        (function == "vfs_read").then(|| Prototype {
            parameters: vec![parameter("file", file), parameter("count", count)],
            result: Type::Integer { bytes: 4, signed: true },
        })
    }

    fn enumerator(&self, name: &str) -> Option<i64> {
        (name == "KERNEL_CONSTANT").then_some(77)
    }

    fn has_symbol(&self, symbol: &str) -> bool {
        matches!(symbol, "counter" | "jiffies")
    }

    fn syscalls(&self) -> Vec<Arc<str>> {
        vec!["openat".into(), "read".into()]
    }

    fn syscall(&self, name: &str) -> Option<Vec<Parameter>> {
        let text = Type::pointer(Type::Integer { bytes: 1, signed: true });
        let parameter = |name: &str, ty: Type| Parameter { name: name.into(), ty };
        (name == "openat").then(|| vec![parameter("dfd", Type::INT64), parameter("filename", text)])
    }

    fn cpus(&self) -> u32 {
        2
    }
}

/// A right script, with some structs before it.
pub(crate) fn program(text: &str) -> Program {
    let text = format!("{STRUCTS}{text}");
    let script = Script::parse(&text, &[]).unwrap_or_else(|error| panic!("{error}"));
    let options = Options { allow_unsafe: true, has_shell: true, ..Options::default() };
    check(&script, &Functions, &options).unwrap_or_else(|error| panic!("{error}"))
}

/// The error of a wrong script.
pub(crate) fn wrong(text: &str) -> String {
    let script = match Script::parse(text, &[]) {
        Ok(script) => script,
        Err(error) => return error.to_string(),
    };
    match check(&script, &Functions, &Options::default()) {
        Ok(_) => panic!("this is right: {text}"),
        Err(error) => error.to_string(),
    }
}

/// Reads of the only body, as text; the reason for an exit last.
pub(crate) fn reads(body: &str) -> Vec<String> {
    let program = program(&format!("kprobe:vfs_read {{ {body} }}"));
    let mut reads: Vec<String> = program.bodies[0].reads.iter().map(ToString::to_string).collect();
    reads
        .extend(program.bodies[0].needs_exit.iter().map(|reason| format!("exit: {}", reason.text)));
    reads
}

/// Memory in which each byte is its address's lowest.
pub(crate) struct Guest;

impl Memory for Guest {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        for (at, byte) in (address..).zip(into.iter_mut()) {
            *byte = at.to_le_bytes()[0];
        }
        address < 0x1_0000
    }
}

impl Host for Guest {
    fn symbol(&self, address: u64) -> Option<SymbolOffset> {
        (address >= 0x8000).then(|| SymbolOffset {
            name: "start".to_owned(),
            offset: address - 0x8000,
            module: None,
        })
    }

    fn user_symbol(&self, pid: u32, address: u64) -> Option<SymbolOffset> {
        (pid == 7).then(|| SymbolOffset {
            name: "main".to_owned(),
            offset: address & 0xff,
            module: None,
        })
    }

    fn memory(&self) -> Option<&dyn Memory> {
        Some(self)
    }
}

/// Runs the first body over hits; returns the outcomes and all that is printed.
pub(crate) fn run(
    text: &str,
    hits: &[&[Datum<'_>]],
    limits: Limits,
) -> (Vec<Result<Outcome, LimitError>>, Collected) {
    let mut runtime = Runtime::new(Arc::new(program(text)), Format::Text, limits);
    let mut out = Collected::default();
    let hit = |(index, values): (usize, &&[Datum<'_>])| {
        let hit = Hit { time: 1_000 * index as u64, cpu: 1, values };
        runtime.run(0, 0, &hit, &Guest, &mut out)
    };
    let outcomes = hits.iter().enumerate().map(hit).collect();
    runtime.finish(&Guest, &mut out);
    (outcomes, out)
}

/// Output of the first body over hits, none of which reaches a limit.
pub(crate) fn printed(text: &str, hits: &[&[Datum<'_>]]) -> String {
    let (outcomes, out) = run(text, hits, Limits::default());
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    String::from_utf8(out.bytes).unwrap()
}
