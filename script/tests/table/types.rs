//! Structs of the kernel's types; enums of these and of the script, by their names.

use std::sync::Arc;

use exoprobe_introspect::btf::Btf;
use exoprobe_introspect::btf::sample::{ENUM, ENUM64, STRUCT, Sample, kernel};
use exoprobe_script::{
    BtfTypes, Collected, Datum, Format, Hit, Kernel, Limits, NoHost, Options, Program, Prototype,
    Record, RecordRef, Runtime, Script, Type, check,
};

use crate::common::printed;

/// Enums have signs.
const SIGNED: u32 = 1 << 31;

/// `enum state`, `enum wide` of 64 bits, an enum without a name, and a struct with both.
fn btf() -> Btf {
    let mut s = Sample::default();
    let int = s.int("int", 4, true);
    let (idle, busy, lost) = (s.name("IDLE"), s.name("BUSY"), s.name("LOST"));
    let values = [idle, 0, busy, 2, lost, u32::MAX];
    let state = s.add("state", SIGNED | ENUM << 24 | 3, 4, &values);
    let (low, high) = (s.name("LOW"), s.name("HIGH"));
    let wide = s.add("wide", ENUM64 << 24 | 2, 8, &[low, 1, 0, high, 0, 0x8000_0000]);
    let lone = s.name("LONE");
    s.add("", ENUM << 24 | 1, 4, &[lone, 9]);
    let members = [("state", state, 0), ("wide", wide, 64), ("pid", int, 128)];
    s.composite(STRUCT, "task", 24, &members);
    s.btf()
}

/// A kernel of which only types are known.
struct Types(Btf);

impl Kernel for Types {
    fn functions(&self, _: Option<&str>, pattern: &str) -> Vec<Arc<str>> {
        vec![pattern.into()]
    }

    fn prototype(&self, function: &str) -> Option<Prototype> {
        BtfTypes::new(&self.0).prototype(function)
    }

    fn record(&self, record: &RecordRef) -> Option<Record> {
        BtfTypes::new(&self.0).record(record)
    }

    fn named_type(&self, name: &str) -> Option<Type> {
        BtfTypes::new(&self.0).named_type(name)
    }

    fn enumerator(&self, name: &str) -> Option<i64> {
        BtfTypes::new(&self.0).enumerator(name)
    }

    fn enumerators(&self, name: &str) -> Vec<(Arc<str>, i64)> {
        BtfTypes::new(&self.0).enumerators(name)
    }
}

/// The program of a script with these types.
fn program(text: &str, btf: Btf) -> Program {
    let script = Script::parse(text, &[]).unwrap_or_else(|error| panic!("{error}"));
    let program = check(&script, &Types(btf), &Options::default());
    program.unwrap_or_else(|error| panic!("{error}"))
}

/// Output of a body with enums.
fn shown(body: &str, format: Format, values: &[Datum<'_>]) -> String {
    let program = program(&format!("kprobe:f {{ {body} }}"), btf());
    let mut runtime = Runtime::new(Arc::new(program), format, Limits::default());
    let mut out = Collected::default();
    runtime.run(0, 0, &Hit { time: 0, cpu: 0, values }, &NoHost, &mut out).unwrap();
    runtime.finish(&NoHost, &mut out);
    String::from_utf8(out.bytes).unwrap()
}

#[test]
fn structs_of_the_kernel_are_known() {
    let reads = |probe: &str, body: &str| -> Vec<String> {
        let program = program(&format!("{probe} {{ @ = {body}; }}"), kernel().btf());
        program.bodies[0].reads.iter().map(ToString::to_string).collect()
    };
    let task = "(struct task *)arg0";
    for (member, read) in [
        ("pid", "int32 at arg0"),
        ("comm", "text of at most 16 bytes at arg0+4"),
        // Of a struct without a name in a union without one.
        ("a", "int32 at arg0+24"),
        ("b", "int32 at arg0+28"),
        ("whole", "uint64 at arg0+24"),
    ] {
        assert_eq!(reads("kprobe:f", &format!("({task})->{member}")), [read], "{member}");
    }
    let text = format!("str(({task})->text)");
    assert_eq!(reads("kprobe:f", &text), ["text of at most 1023 bytes at *(arg0+40)"]);
    // Arguments by name.
    assert_eq!(reads("fentry:get", "args.task->b"), ["int32 at arg2+28"]);
    let text = "str(args->name)";
    assert_eq!(reads("fentry:get", text), ["text of at most 1023 bytes at arg1"]);
    let body = "print((sizeof(struct task), offsetof(struct task, b), sizeof(pid_t))); print((pid_t)arg0);";
    let program = program(&format!("kprobe:f {{ {body} }}"), kernel().btf());
    let mut out = Collected::default();
    let mut runtime = Runtime::new(Arc::new(program), Format::Text, Limits::default());
    runtime
        .run(0, 0, &Hit { time: 0, cpu: 0, values: &[Datum::Int(5 << 32 | 7)] }, &NoHost, &mut out)
        .unwrap();
    assert_eq!(out.bytes, b"(48, 28, 4)\n7\n");
}

#[test]
fn constants_of_a_script_are_shown_by_name() {
    let enums = "enum color { RED, GREEN = 5, BLUE, DARK = GREEN + 10 };
        struct pixel { enum color color; int x; };";
    let text = |body: &str| format!("{enums} kprobe:vfs_read {{ {body} }}");
    let body = "printf(\"%s %d %s %d\\n\", BLUE, BLUE, DARK, RED); print(GREEN); print(GREEN + 1);";
    assert_eq!(printed(&text(body), &[&[]]), "BLUE 6 DARK 0\nGREEN\n6\n\n\n");
    let body = "$p = (struct pixel *)arg0; print($p->color); printf(\"%s %d\\n\", $p->color, $p->color); @[$p->color] = count(); @v = (enum color)arg1;";
    let hits: [&[Datum<'_>]; 2] =
        [&[Datum::Int(5), Datum::Int(15)], &[Datum::Int(7), Datum::Int(16)]];
    let wanted = "GREEN\nGREEN 5\n7\n7 7\n\n\n@[GREEN]: 1\n@[7]: 1\n@v: 16\n";
    assert_eq!(printed(&text(body), &hits), wanted);
}

#[test]
fn enums_of_a_script_may_have_no_name() {
    let text = "enum { ONE = 1, TWO }; enum { OTHER = 1, LAST = sizeof(struct s) + TWO };
        enum again { ONE = 7, MORE };
        struct s { long a; };
        kprobe:vfs_read { print(TWO); print(OTHER); print(LAST); print(ONE + LAST); }";
    assert_eq!(printed(text, &[&[]]), "TWO\nOTHER\nLAST\n11\n\n\n");
}

#[test]
fn members_and_casts_of_the_kernels_enums_are_shown_by_name() {
    let text = Format::Text;
    let body = "$t = (struct task *)arg0; print($t->state); printf(\"%s %d\\n\", $t->state, $t->state); @[$t->wide] = $t->state;";
    let shown_of =
        |state: u64, wide: u64| shown(body, text, &[Datum::Int(state), Datum::Int(wide)]);
    assert_eq!(shown_of(2, 1), "BUSY\nBUSY 2\n\n\n@[LOW]: BUSY\n");
    assert_eq!(shown_of(u64::MAX, 1 << 63), "LOST\nLOST -1\n\n\n@[HIGH]: LOST\n");
    assert_eq!(shown_of(3, 2), "3\n3 3\n\n\n@[2]: 3\n");
    let cast = "print((enum state)arg0); print(((enum state)arg0, arg0));";
    assert_eq!(shown(cast, text, &[Datum::Int(0)]), "IDLE\n(IDLE, 0)\n\n\n");
    let whole = "print(*(struct task *)arg0);";
    let mut bytes = [0; 24];
    (bytes[0], bytes[8], bytes[16]) = (2, 1, 7);
    let wanted = "{ .state = BUSY, .wide = LOW, .pid = 7 }\n\n\n";
    assert_eq!(shown(whole, text, &[Datum::Bytes(&bytes)]), wanted);
}

#[test]
fn constants_of_the_kernel_are_numbers() {
    let body = "print(BUSY); print(LOST); print(HIGH); print(LONE); print((enum state)BUSY);";
    let wanted = "2\n-1\n-9223372036854775808\n9\nBUSY\n\n\n";
    assert_eq!(shown(body, Format::Text, &[]), wanted);
}

#[test]
fn btf_has_the_constants_of_each_enum() {
    let btf = btf();
    let types = BtfTypes::new(&btf);
    let values = |name: &str| types.enumerators(name);
    let named = |all: &[(&str, i64)]| -> Vec<(Arc<str>, i64)> {
        all.iter().map(|(name, value)| (Arc::from(*name), *value)).collect()
    };
    assert_eq!(values("state"), named(&[("IDLE", 0), ("BUSY", 2), ("LOST", -1)]));
    assert_eq!(values("wide"), named(&[("LOW", 1), ("HIGH", i64::MIN)]));
    assert_eq!(values("task"), named(&[]));
    assert_eq!(values(""), named(&[]));
    assert_eq!(types.enumerator("LONE"), Some(9));
    assert_eq!(types.enumerator("LOST"), Some(-1));
    assert_eq!(types.enumerator("NONE"), None);
}
