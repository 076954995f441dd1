//! BTF made by hand.

use proptest::prelude::*;

use super::sample::*;
use super::*;
use crate::symbols::{MAX_FILE_BYTES, SymbolTable};

#[test]
fn members_are_found_also_in_unnamed_ones() {
    let btf = kernel().btf();
    let at = |path| {
        btf.field_of("task", path).map(|place| (place.bit_offset, btf.declaration(place.id, "")))
    };
    assert_eq!(at("pid"), Ok((0, "pid_t".to_owned())));
    assert_eq!(at("comm"), Ok((32, "char[16]".to_owned())));
    assert_eq!(at("b"), Ok((224, "int".to_owned())));
    assert_eq!(at("whole"), Ok((192, "struct later *".to_owned())));
    let no = at("c").unwrap_err();
    assert_eq!(no.to_string(), "struct task has no member \"c\"");
    assert_eq!(
        at("pid.x").unwrap_err().to_string(),
        "pid_t is no struct or union: it has no member \"x\""
    );
    assert_eq!(
        btf.field_of("nothing", "x").unwrap_err().to_string(),
        "the kernel has no type \"nothing\""
    );
    assert_eq!(btf.size_of(btf.find("struct task").unwrap()), Some(48));
    assert_eq!((btf.find("union task"), btf.find("pid")), (None, None));
    assert_eq!(btf.type_names().collect::<Vec<_>>(), ["pid_t", "task"]);
}

#[test]
fn layouts_have_unnamed_members_within() {
    let btf = kernel().btf();
    let layout = btf.layout(btf.find("task").unwrap(), "task");
    assert_eq!(
        (layout.kind, &*layout.declaration, layout.size),
        ("struct", "struct task", Some(48))
    );
    let flat: Vec<(&str, u64, u64)> =
        layout.members.iter().map(|m| (&*m.declaration, m.offset, m.size)).collect();
    let expected = [
        ("pid_t pid", 0, 4),
        ("char comm[16]", 4, 16),
        ("union {...}", 24, 8),
        ("struct later *next", 32, 8),
        ("const char *text", 40, 8),
    ];
    assert_eq!(flat, expected);
    let b = &layout.members[2].members[0].members[1];
    assert_eq!((&*b.name, b.offset, b.bits), ("b", 28, None));
    let get = btf.layout(btf.function("get").unwrap(), "get");
    assert_eq!(get.kind, "function");
    assert!(get.declaration.starts_with("int get(int fd"), "{}", get.declaration);
    let own = btf.layout(btf.find("pid_t").unwrap(), "pid_t");
    assert_eq!((own.kind, &*own.declaration), ("typedef", "typedef int pid_t"));
}

#[test]
fn bit_fields_have_widths() {
    let mut s = Sample::default();
    let int = s.int("unsigned int", 4, false);
    let info = 1 << 31 | STRUCT << 24 | 2;
    let (a, b) = (s.name("a"), s.name("b"));
    s.add("flags", info, 4, &[a, int, 3 << 24, b, int, 5 << 24 | 3]);
    let btf = s.btf();
    let b = btf.field_of("flags", "b").unwrap();
    assert_eq!((b.bit_offset, b.bits, b.offset()), (3, Some(5), 0));
    let layout = btf.layout(btf.find("flags").unwrap(), "flags");
    assert_eq!(layout.members[1].bits, Some((5, 3)));
}

#[test]
fn declarations_read_as_c() {
    let mut s = kernel();
    let int = 1;
    let user = s.add("user", TYPE_TAG << 24, 2, &[]);
    let tagged = s.to(POINTER, user);
    let fixed = s.to(CONST, tagged);
    let call = s.add("", PROTOTYPE << 24 | 2, int, &[0, fixed, 0, 0]);
    let call = s.to(POINTER, call);
    let rows = s.add("", ARRAY << 24, 0, &[call, int, 3]);
    let plain = s.add("", PROTOTYPE << 24, 0, &[]);
    let btf = s.btf();
    assert_eq!(btf.declaration(TypeId(tagged), "p"), "char *p");
    assert_eq!(btf.declaration(TypeId(fixed), "p"), "char *const p");
    assert_eq!(btf.declaration(TypeId(rows), "f"), "int (*f[3])(char *const, ...)");
    assert_eq!(btf.declaration(TypeId(plain), "g"), "void g(void)");
    let get = btf.function("get").unwrap();
    let text = "int get(int fd, const char *name, struct task *task)";
    assert_eq!(btf.declaration(get, "get"), text);
}

#[test]
fn a_name_with_a_blank_names_nothing() {
    let mut s = kernel();
    s.composite(STRUCT, "struct task", 8, &[]);
    s.composite(STRUCT, "a\u{1b}", 8, &[]);
    let btf = s.btf();
    assert_eq!(btf.size_of(btf.find("struct task").unwrap()), Some(48));
    assert_eq!(btf.type_names().collect::<Vec<_>>(), ["pid_t", "task"]);
}

#[test]
fn enums_have_names_and_signs() {
    let mut s = Sample::default();
    let (a, b) = (s.name("A"), s.name("B"));
    s.add("e", 1 << 31 | ENUM << 24 | 2, 4, &[a, 1, b, u32::MAX]);
    s.add("f", ENUM64 << 24 | 1, 8, &[a, 0, 1]);
    let btf = s.btf();
    let values = |name| -> Vec<(String, i128)> {
        let id = btf.find(name).unwrap();
        btf.enum_values(id).map(|v| (v.name.to_owned(), v.value)).collect()
    };
    assert_eq!(values("enum e"), [("A".to_owned(), 1), ("B".to_owned(), -1)]);
    assert_eq!(values("f"), [("A".to_owned(), 1 << 32)]);
}

#[test]
fn parameters_are_where_the_abi_puts_them() {
    let mut s = Sample::default();
    let long = s.int("long", 8, true);
    let two = s.composite(STRUCT, "two", 16, &[]);
    let large = s.composite(STRUCT, "large", 24, &[]);
    let (l, t, b) = (("l", long), ("t", two), ("b", large));
    s.function("f", 0, &[l, t, b, l, l, t, l, l]);
    let btf = s.btf();
    let found = btf.parameters(btf.function("f").unwrap());
    let places: Vec<ArgumentPlace> = found.iter().map(|param| param.place).collect();
    use ArgumentPlace::{ByValue, Register, Stack};
    // The large one takes three words of the stack; for the second of two words one register is left, and not used.
    let expected =
        [Register(0), ByValue, ByValue, Register(3), Register(4), ByValue, Register(5), Stack(6)];
    assert_eq!(places, expected);
    assert_eq!(btf.function("two"), None);
}

#[test]
fn functions_that_differ_under_one_name_are_none() {
    let mut s = Sample::default();
    let int = s.int("int", 4, true);
    s.function("twice", int, &[("a", int)]);
    s.function("twice", int, &[("b", int)]);
    assert_eq!(s.btf().function("twice"), None);
}

#[test]
fn circles_end() {
    let mut s = Sample::default();
    let circle = s.add("circle", TYPEDEF << 24, 1, &[]);
    assert_eq!(circle, 1);
    let own = s.composite(STRUCT, "own", 8, &[("", 2, 0), ("", 2, 0), ("", 2, 0)]);
    assert_eq!(own, 2);
    let row = s.add("", ARRAY << 24, 0, &[3, 3, u32::MAX]);
    assert_eq!(row, 3);
    let params: Vec<u32> = [0, 4].repeat(1000);
    s.add("", PROTOTYPE << 24 | 1000, 4, &params);
    s.to(POINTER, 5);
    let btf = s.btf();
    assert_eq!((btf.resolve(TypeId(1)), btf.size_of(TypeId(1))), (TypeId(0), None));
    assert_eq!(btf.size_of(TypeId(3)), None);
    assert!(btf.field_of("own", "x").is_err());
    assert!(btf.declaration(TypeId(4), "f").len() < 10_000);
    assert!(btf.declaration(TypeId(5), "").len() < 10_000);
    assert!(btf.declaration(TypeId(3), "a").contains("..."));
    assert!(!btf.layout(TypeId(2), "own").members.is_empty());
}

#[test]
fn what_is_wrong_is_told() {
    let good = kernel().bytes();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        Btf::parse(&bytes).unwrap_err()
    };
    assert_eq!(with(0, 0), BtfError::Magic);
    assert_eq!(with(2, 2), BtfError::Version(2));
    assert_eq!(with(4, 8), BtfError::Sections);
    assert_eq!(with(15, 0xff), BtfError::Sections);
    assert_eq!(with(24 + 3, 0xff), BtfError::Reference(1));
    assert_eq!(with(24 + 7, 0x1f), BtfError::Kind { id: 1, kind: 0x1f });
    assert_eq!(with(good.len() - 1, b'x'), BtfError::Strings);
    assert_eq!(Btf::parse(&[]).unwrap_err(), BtfError::Magic);
    let mut swapped = good.clone();
    swapped.swap(0, 1);
    assert_eq!(Btf::parse(&swapped).unwrap_err(), BtfError::Version(0));
    let mut cut = Sample::default();
    cut.add("s", STRUCT << 24 | 9, 8, &[0, 0, 0]);
    assert_eq!(Btf::parse(&cut.bytes()).unwrap_err(), BtfError::Truncated(1));
    let mut beyond = Sample::default();
    beyond.to(POINTER, 2);
    assert_eq!(Btf::parse(&beyond.bytes()).unwrap_err(), BtfError::Reference(1));
}

#[test]
fn files_have_it_as_it_is_or_in_a_section() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("btf");
    std::fs::write(&path, kernel().bytes()).unwrap();
    assert_eq!(Btf::open(&path).unwrap().len(), kernel().count as usize);
    std::fs::write(&path, b"\x7fELF nothing").unwrap();
    assert!(matches!(Btf::open(&path), Err(FileError::NoSection)));
    // The tests' own program is ELF, and has none.
    let own = std::env::current_exe().unwrap();
    assert!(matches!(Btf::open(&own), Err(FileError::NoSection)));
    assert!(matches!(Btf::open(folder.path()), Err(FileError::NotAFile)));
    assert!(matches!(Btf::open(&folder.path().join("missing")), Err(FileError::Io(_))));
    // Sparse: takes no space.
    std::fs::File::create(&path).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
    assert!(matches!(Btf::open(&path), Err(FileError::TooLarge)));
}

/// Asks all that can be asked.
fn ask(btf: &Btf) {
    for id in btf.ids() {
        let _ = (btf.size_of(id), btf.declaration(id, "x"), btf.parameters(id).len());
        let _ = (btf.layout(id, "x"), btf.field(id, "a.b"), btf.enum_values(id).count());
    }
    btf.type_names().for_each(|name| assert!(btf.named(name).next().is_some()));
}

proptest! {
    #[test]
    fn changed_bytes_never_panic(changes in prop::collection::vec((0usize..700, any::<u8>()), 1..8)) {
        let mut bytes = kernel().bytes();
        for (at, byte) in changes {
            let len = bytes.len();
            bytes[at % len] = byte;
        }
        if let Ok(btf) = Btf::parse(&bytes) {
            ask(&btf);
        }
    }

    #[test]
    fn any_types_never_panic(words in prop::collection::vec(any::<u32>(), 0..64)) {
        let mut sample = kernel();
        sample.words.extend(words.iter().map(|word| word % 0x2000_0000));
        if let Ok(btf) = Btf::parse(&sample.bytes()) {
            ask(&btf);
        }
    }
}

#[test]
fn types_belong_to_a_kernel_that_has_all_of_their_functions() {
    let mut sample = Sample::default();
    let int = sample.int("int", 4, true);
    sample.function("work", int, &[]);
    sample.function("rest", int, &[]);
    let types = sample.btf();
    let symbols = |text: &str| SymbolTable::from_system_map(text).unwrap();
    let start = "ffffffff81000000 T _text\nffffffff81000010 T work\n";
    let own =
        symbols(&format!("{start}ffffffff81000020 t rest.isra.0\nffffffff81000030 T _etext\n"));
    assert_eq!(types.check_kernel(&own), Ok(()));
    let other = symbols(&format!("{start}ffffffff81000030 T _etext\n"));
    assert_eq!(types.check_kernel(&other), Err(Foreign::Function("rest".to_owned())));
    let mut without = Sample::default();
    without.int("int", 4, true);
    assert_eq!(without.btf().check_kernel(&own), Err(Foreign::NoFunctions));
}
