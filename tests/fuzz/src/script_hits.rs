//! A script over a kernel with functions, types and system calls; after a zero byte, what the hits
//! of its probes are made of.

use std::sync::{Arc, LazyLock};

use exoprobe_introspect::Btf;
use exoprobe_introspect::btf::sample::{self, ARRAY, ENUM, POINTER, STRUCT};
use exoprobe_script::{
    AttachmentKind, Body, BtfTypes, Collected, Datum, Diagnostics, Format, Hit, Host, Kernel,
    Memory, MemoryKind, Options, OwnedDatum, Parameter, Program, Prototype, Read, Record,
    RecordRef, Runtime, Script, SymbolOffset, Type, check,
};

use super::script_run::{LIMITS, Pages, finish};

const FUNCTIONS: [&str; 4] = ["get", "walk", "walk_all", "write"];
/// Most hits of each probe.
const HITS: usize = 8;
/// Longest bytes, and most frames, of one value.
const VALUE_MAX: usize = 600;

/// The sample's types, and a list with bit-fields, arrays and an enum.
static TYPES: LazyLock<Btf> = LazyLock::new(|| {
    let mut types = sample::kernel();
    let (int, long) = (types.int("unsigned int", 4, false), types.int("long", 8, true));
    let words = types.add("", ARRAY << 24, 0, &[long, int, 4]);
    let small = types.name("SMALL");
    let state = types.add("state", ENUM << 24 | 1, 4, &[small, 3]);
    // The pointer comes right before its struct.
    let next = types.to(POINTER, types.count + 2);
    let member = |name: u32, id: u32, bits: u32, at: u32| [name, id, bits << 24 | at];
    let names = ["next", "low", "high", "words", "state"].map(|name| types.name(name));
    let members = [
        member(names[0], next, 0, 0),
        member(names[1], int, 3, 64),
        member(names[2], int, 9, 67),
        member(names[3], words, 0, 128),
        member(names[4], state, 0, 384),
    ];
    let info = 1 << 31 | STRUCT << 24 | 5;
    types.add("node", info, 56, members.as_flattened());
    types.function("walk", next, &[("node", next), ("count", int)]);
    types.btf()
});

struct Sampled;

impl Kernel for Sampled {
    fn functions(&self, module: Option<&str>, pattern: &str) -> Vec<Arc<str>> {
        let fits = |name: &str| match pattern.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == pattern,
        };
        let own = FUNCTIONS.into_iter().filter(|_| matches!(module, None | Some("vmlinux")));
        own.filter(|name| fits(name)).map(Arc::from).collect()
    }

    fn prototype(&self, function: &str) -> Option<Prototype> {
        BtfTypes::new(&TYPES).prototype(function)
    }

    fn record(&self, record: &RecordRef) -> Option<Record> {
        BtfTypes::new(&TYPES).record(record)
    }

    fn named_type(&self, name: &str) -> Option<Type> {
        BtfTypes::new(&TYPES).named_type(name)
    }

    fn enumerator(&self, name: &str) -> Option<i64> {
        BtfTypes::new(&TYPES).enumerator(name)
    }

    fn enumerators(&self, name: &str) -> Vec<(Arc<str>, i64)> {
        BtfTypes::new(&TYPES).enumerators(name)
    }

    fn has_symbol(&self, symbol: &str) -> bool {
        matches!(symbol, "jiffies" | "counter")
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

/// A guest at a hit.
struct Guest {
    /// The body may read memory.
    has_memory: bool,
}

impl Host for Guest {
    fn symbol(&self, address: u64) -> Option<SymbolOffset> {
        let offset = address.checked_sub(u64::MAX << 31)?;
        Some(SymbolOffset { name: "start".to_owned(), offset, module: None })
    }

    fn memory(&self) -> Option<&dyn Memory> {
        assert!(self.has_memory, "it has its values, and reads memory");
        Some(&Pages)
    }
}

/// The rest of the input.
struct Source<'a>(&'a [u8]);

impl Source<'_> {
    /// The next byte; zero after the last.
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// A number of few bytes, or all of them.
    fn int(&mut self) -> u64 {
        let bytes = usize::from(self.byte() % 9);
        let number = (0..bytes).fold(0, |number, _| number << 8 | u64::from(self.byte()));
        if self.byte() & 1 == 0 { number } else { !number }
    }

    fn bytes(&mut self, len: usize) -> OwnedDatum {
        OwnedDatum::Bytes((0..len.min(VALUE_MAX)).map(|_| self.byte()).collect())
    }

    /// The value of a read, as a guest can give it: also a fault, or less than was asked for.
    fn value(&mut self, read: &Read) -> OwnedDatum {
        let how = self.byte();
        if how % 8 == 1 {
            return OwnedDatum::Fault;
        }
        let part = |len: u32| if how % 8 == 2 { len / 2 } else { len } as usize;
        match read {
            Read::Comm => self.bytes(part(15)),
            Read::KernelStack(frames) | Read::UserStack(frames) => {
                let count = part(*frames).min(usize::from(how / 8));
                OwnedDatum::Stack((0..count).map(|_| self.int()).collect())
            }
            Read::Memory { what: MemoryKind::Bytes(len), .. } => self.bytes(part(*len)),
            Read::Memory { what: MemoryKind::Text(max), .. } => {
                self.bytes(part(*max).min(usize::from(how)))
            }
            _ => OwnedDatum::Int(self.int()),
        }
    }

    /// The values of one hit.
    fn values(&mut self, body: &Body) -> Vec<OwnedDatum> {
        body.reads.iter().map(|read| self.value(read)).collect()
    }
}

/// The script and the bytes of the hits.
fn parts(input: &[u8]) -> (&[u8], &[u8]) {
    let end = input.iter().position(|byte| *byte == 0).unwrap_or(input.len());
    input.split_at(end)
}

fn program(text: &str) -> Result<Program, Diagnostics> {
    let options = Options { allow_unsafe: true, has_shell: true, ..Options::default() };
    check(&Script::parse(text, &[])?, &Sampled, &options)
}

pub(crate) fn run(input: &[u8]) {
    let (text, rest) = parts(input);
    let Ok(text) = std::str::from_utf8(text) else { return };
    let Ok(program) = program(text) else { return };
    assert!(program.explain().ends_with('\n'));
    let program = Arc::new(program);
    for format in [Format::Text, Format::Json] {
        run_hits(&program, format, &mut Source(rest));
    }
}

/// Returns true for what has no place in the guest: memory can be read at any time.
fn is_timed(kind: &AttachmentKind) -> bool {
    use AttachmentKind as Kind;
    matches!(kind, Kind::Begin | Kind::End | Kind::Interval { .. })
}

fn run_hits(program: &Arc<Program>, format: Format, source: &mut Source<'_>) {
    let mut runtime = Runtime::new(Arc::clone(program), format, LIMITS);
    let mut out = Collected::default();
    let mut time = 0;
    for _ in 0..HITS {
        for (index, attachment) in program.attachments.iter().enumerate() {
            for number in &attachment.bodies {
                let body = &program.bodies[*number];
                let values = source.values(body);
                let values: Vec<Datum<'_>> = values.iter().map(OwnedDatum::datum).collect();
                let has_memory = body.needs_exit.is_some() || is_timed(&attachment.kind);
                let host = Guest { has_memory };
                time += source.int() >> 32;
                let hit = Hit { time, cpu: u32::from(source.byte() % 2), values: &values };
                let before = out.bytes.len();
                let _ = runtime.run(index, *number, &hit, &host, &mut out);
                assert!(out.bytes.len() - before <= LIMITS.output_bytes);
            }
        }
    }
    finish(&mut runtime, format, &Guest { has_memory: false }, out);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Else nothing but errors would be fuzzed.
    #[test]
    fn seeds_are_right_scripts() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds/script_hits");
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            let input = std::fs::read(&path).unwrap();
            let text = std::str::from_utf8(parts(&input).0).unwrap();
            program(text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
    }
}
