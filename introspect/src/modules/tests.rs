//! Modules in an image of memory, whole and broken.

use proptest::prelude::*;

use super::sample::{Form, SampleModule};
use super::*;
use crate::SymbolTable;
use crate::image::sample::{KERNEL, MODE, image, mapped};
use crate::symbols::{LookupError, ModuleTable, SymbolKind, TextKind};

const HEAD: u64 = KERNEL + 0x2000;
const FIRST: u64 = KERNEL + 0x3000;
const SECOND: u64 = KERNEL + 0x4000;
/// Of modules; nothing is mapped there.
const TEXT: u64 = 0xffff_ffff_c000_0000;
const FORMS: [Form; 2] = [Form::Layouts, Form::Memories];

fn symbols() -> SymbolTable {
    let map = format!(
        "ffffffff81000000 T _stext\nffffffff81000010 T vfs_read\nffffffff81000020 t twice\n\
         ffffffff81002000 T _etext\n{HEAD:x} d modules\nffffffff81800000 B _end\n"
    );
    SymbolTable::from_system_map(&map).unwrap()
}

fn two() -> Vec<SampleModule> {
    let first = SampleModule {
        name: "hello",
        at: FIRST,
        text: (TEXT, 0x1000),
        extable: (KERNEL + 0x100, 3),
        jump_labels: (KERNEL + 0x200, 2),
        symbols: vec![
            ("hello_work", TEXT + 0x10, 0x20, b't'),
            ("twice", TEXT + 0x40, 0, b't'),
            ("hello_count", KERNEL + 0x5000, 8, b'b'),
            ("_printk", KERNEL + 0x100_0000, 0, b'U'),
            ("huge", TEXT + 0x80, u64::MAX, b't'),
        ],
        ..SampleModule::default()
    };
    let second = SampleModule {
        name: "other_one",
        state: 1,
        at: SECOND,
        text: (TEXT + 0x2000, 0x800),
        init_text: (TEXT + 0x4000, 0x400),
        live_patch: true,
        symbols: vec![
            ("init_module", TEXT + 0x4000, 0x30, b't'),
            ("hello_work", TEXT + 0x2010, 0x20, b't'),
        ],
        ..SampleModule::default()
    };
    vec![first, second]
}

struct Image(Vec<u8>);

impl Image {
    fn of(form: Form, modules: &[SampleModule]) -> Self {
        let mut image = Self(mapped(0x6000, &[KERNEL]));
        sample::write(form, HEAD, modules, &mut |at, bytes| image.put(at, bytes));
        image
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        let at = usize::try_from(at - KERNEL).unwrap();
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn list(&self, form: Form) -> Result<Vec<Module>, ModuleError> {
        let image = image(self.0.clone());
        let layout = ModuleLayout::find(&sample::types(form).btf(), &symbols()).unwrap();
        layout.list(&VirtualMemory::with_mode(&image, MODE))
    }

    fn tables(&self, form: Form, room: Room) -> Result<Vec<ModuleTable>, ModuleError> {
        let image = image(self.0.clone());
        let memory = VirtualMemory::with_mode(&image, MODE);
        let layout = ModuleLayout::find(&sample::types(form).btf(), &symbols())?;
        let modules = layout.list(&memory)?;
        modules.iter().map(|module| layout.symbols(&memory, module, room)).collect()
    }

    fn table(&self, form: Form) -> SymbolTable {
        let tables = self.tables(form, Room::default()).unwrap();
        symbols().with_modules(tables.into_iter().map(Into::into).collect())
    }
}

impl From<NoModules> for ModuleError {
    fn from(error: NoModules) -> Self {
        panic!("{error}")
    }
}

#[test]
fn modules_are_listed_in_both_forms() {
    for form in FORMS {
        let found = Image::of(form, &two()).list(form).unwrap();
        let names: Vec<(&str, ModuleState)> = found.iter().map(|m| (&*m.name, m.state)).collect();
        assert_eq!(names, [("hello", ModuleState::Live), ("other_one", ModuleState::Coming)]);
        assert_eq!(found[0].at, Gva(FIRST));
        assert_eq!(found[0].text, Gva(TEXT)..Gva(TEXT + 0x1000), "{form:?}");
        assert!(found[0].init_text.is_empty());
        assert_eq!(found[0].extable, ModuleEntries { at: Gva(KERNEL + 0x100), count: 3 });
        let labels = if form == Form::Memories { 2 } else { 0 };
        assert_eq!(found[0].jump_labels.count, labels);
        assert_eq!(found[1].init_text, Gva(TEXT + 0x4000)..Gva(TEXT + 0x4400));
        let patches: Vec<bool> = found.iter().map(|module| module.live_patch).collect();
        assert_eq!(patches, [false, form == Form::Memories]);
    }
    assert_eq!(Image::of(Form::Memories, &[]).list(Form::Memories), Ok(Vec::new()));
}

#[test]
fn symbols_of_modules_are_found_as_the_kernels_own() {
    for form in FORMS {
        let table = Image::of(form, &two()).table(form);
        let at = |name: &str| table.lookup(name).map(|symbol| symbol.address.0);
        assert_eq!(at("vfs_read"), Ok(0xffff_ffff_8100_0010));
        assert_eq!(at("init_module"), Ok(TEXT + 0x4000));
        assert_eq!(at("other_one:hello_work"), Ok(TEXT + 0x2010));
        assert!(matches!(at("_printk"), Err(LookupError::Unknown { .. })), "another's");
        let addresses = vec![Gva(TEXT + 0x10), Gva(TEXT + 0x2010)];
        assert_eq!(
            at("hello_work"),
            Err(LookupError::Ambiguous { name: "hello_work".into(), addresses })
        );
        assert!(matches!(at("twice"), Err(LookupError::Ambiguous { .. })), "also the kernel's");
        assert_eq!(table.address_of("twice"), Some(Gva(0xffff_ffff_8100_0020)));
        assert_eq!(at("gone:twice"), Err(LookupError::NoModule { module: "gone".into() }));
        let near = table.lookup("hello:helo_work").unwrap_err().to_string();
        assert!(near.contains("did you mean hello:hello_work?"), "{near}");
        let resolved = |at| table.resolve(Gva(at)).map(|found| found.to_string());
        assert_eq!(resolved(TEXT + 0x12).as_deref(), Some("hello_work+0x2 [hello]"));
        let qualified = table.resolve(Gva(TEXT + 0x12)).unwrap().qualified_name();
        assert_eq!(qualified, "hello:hello_work");
        assert_eq!(resolved(0xffff_ffff_8100_0012).as_deref(), Some("vfs_read+0x2"));
        assert_eq!(resolved(TEXT + 0x1000), None, "however large a function says it is");
        assert_eq!(table.text_kind(Gva(TEXT + 0x4000)), Some(TextKind::Module));
        assert!(!table.text_contains(Gva(TEXT + 0x1000)) && !table.text_contains(Gva(TEXT - 1)));
        let count = table.lookup("hello_count").unwrap();
        assert_eq!((count.kind, count.module), (SymbolKind::Data, Some("hello")));
        let found: Vec<&str> = table.search("hello:h*").map(|symbol| symbol.name).collect();
        assert_eq!(found, ["hello_count", "hello_work", "huge"]);
        assert_eq!(table.search("hello_*").count(), 3);
        assert_eq!(table.iter().count(), table.len());
        assert_eq!(table.text_ranges().count(), 4);
    }
}

#[test]
fn functions_are_told_by_letters_and_by_text() {
    let mut modules = two();
    modules[0].symbols.push(("table", TEXT + 0x100, 8, b'd'));
    let is_function = |form| {
        let table = Image::of(form, &modules).table(form);
        table.lookup("table").unwrap().kind == SymbolKind::Function
    };
    assert_eq!(FORMS.map(is_function), [true, false], "without letters by its place alone");
}

#[test]
fn a_list_that_is_none_is_refused() {
    let form = Form::Memories;
    let broken = |change: &dyn Fn(&mut Image)| {
        let mut image = Image::of(form, &two());
        change(&mut image);
        image.list(form)
    };
    let circle = broken(&|image| image.put(SECOND + 8, &(FIRST + 8).to_le_bytes()));
    assert_eq!(circle, Err(ModuleError::Broken));
    let user = broken(&|image| image.put(HEAD, &0x1000_u64.to_le_bytes()));
    assert_eq!(user, Err(ModuleError::BadLink(Gva(0x1000))));
    let nothing = broken(&|image| image.put(HEAD, &0_u64.to_le_bytes()));
    assert_eq!(nothing, Err(ModuleError::BadLink(Gva(0))));
    let unmapped = broken(&|image| image.put(HEAD, &TEXT.to_le_bytes()));
    assert!(matches!(unmapped, Err(ModuleError::Read(_))));
    let state = broken(&|image| image.put(FIRST, &[9]));
    assert_eq!(state, Err(ModuleError::BadState { at: Gva(FIRST), state: 9 }));
    for name in [*b"\0", *b":", *b"\x1b"] {
        let name = broken(&|image| image.put(FIRST + 24, &name));
        assert_eq!(name, Err(ModuleError::BadName(Gva(FIRST))));
    }
    let endless = broken(&|image| image.put(FIRST + 24, &[b'a'; 56]));
    assert_eq!(endless, Err(ModuleError::BadName(Gva(FIRST))));
}

#[test]
fn text_that_cannot_be_a_modules_is_refused() {
    for form in FORMS {
        let of = |text, init_text| {
            let mut modules = two();
            (modules[0].text, modules[0].init_text) = (text, init_text);
            Image::of(form, &modules).list(form)
        };
        let bad = |at| Err(ModuleError::BadText { module: "hello".into(), text: Gva(at) });
        let none = (0, 0);
        let kernels = 0xffff_ffff_8100_1ff0;
        assert_eq!(of((kernels, 0x1000), none), bad(kernels));
        assert_eq!(of((TEXT, u32::MAX), none), bad(TEXT));
        assert_eq!(of((0x40_0000, 0x1000), none), bad(0x40_0000), "user memory");
        assert_eq!(of((u64::MAX - 1, 0x1000), none), bad(u64::MAX - 1));
        let both = of((TEXT, 0x2001), none).unwrap_err();
        assert!(matches!(both, ModuleError::BadText { .. }), "the other's as well");
        assert!(of((TEXT, 0x1000), (TEXT + 0xfff, 0x10)).is_err(), "its own twice");
        assert!(of(none, none).is_ok(), "a module may have no code");
    }
    let mut modules = two();
    (modules[0].state, modules[0].text) = (3, (0x1234, 1));
    let found = Image::of(Form::Memories, &modules).list(Form::Memories).unwrap();
    assert!(found[0].text.is_empty(), "nothing of it is relied on");
}

#[test]
fn more_symbols_than_there_is_room_for_are_refused() {
    let form = Form::Memories;
    let too_many = |result: Result<Vec<ModuleTable>, ModuleError>| {
        matches!(result, Err(ModuleError::TooManySymbols { .. }))
    };
    let image = Image::of(form, &two());
    assert!(too_many(image.tables(form, Room { symbols: 3, ..Room::default() })));
    assert!(too_many(image.tables(form, Room { name_bytes: 20, ..Room::default() })));
    let tables = image.tables(form, Room::default()).unwrap();
    let left = tables.iter().try_fold(Room::default(), |room, table| room.without(table));
    assert_eq!(left.unwrap().symbols, Room::default().symbols - 6);
    assert_eq!(Room { symbols: 1, name_bytes: 100 }.without(&tables[0]), None);
    let mut image = Image::of(form, &two());
    image.put(FIRST + 0x180 + 8, &(SYMBOLS_MAX + 1).to_le_bytes());
    assert!(too_many(image.tables(form, Room::default())));
    image.put(FIRST + 0x180 + 8, &SYMBOLS_MAX.to_le_bytes());
    assert!(matches!(image.tables(form, Room::default()), Err(ModuleError::Read(_))));
}

#[test]
fn what_is_missing_is_told_with_what_helps() {
    let types = sample::types(Form::Memories).btf();
    let without =
        SymbolTable::from_system_map("ffffffff81000000 T _stext\nffffffff81002000 T _etext\n");
    let none = ModuleLayout::find(&types, &without.unwrap()).unwrap_err();
    assert_eq!(none, NoModules::NoList);
    assert!(none.to_string().contains("--symbols"));
    let other = crate::btf::sample::kernel().btf();
    let none = ModuleLayout::find(&other, &symbols()).unwrap_err();
    assert!(none.to_string().contains("struct module") && none.to_string().contains("--btf"));
}

#[test]
fn a_module_is_the_same_in_another_state_but_not_with_other_text() {
    let found = Image::of(Form::Memories, &two()).list(Form::Memories).unwrap();
    let later = Module { state: ModuleState::Going, ..found[0].clone() };
    assert!(found[0].has_text_of(&later));
    let moved = Module { init_text: found[0].text.clone(), ..found[0].clone() };
    assert!(!found[0].has_text_of(&moved) && !found[0].has_text_of(&found[1]));
}

proptest! {
    #[test]
    fn no_memory_panics(
        changes in prop::collection::vec((0x2000..0x5000_usize, any::<u8>()), 0..40),
        words in prop::collection::vec((0x2000 / 8..0x5000 / 8_usize, prop_oneof![
            Just(0), Just(u64::MAX), HEAD..HEAD + 0x3000, any::<u64>(),
        ]), 0..6),
        memories in any::<bool>(),
    ) {
        let form = FORMS[usize::from(memories)];
        let mut image = Image::of(form, &two());
        for (at, byte) in changes {
            image.0[at] = byte;
        }
        for (at, word) in words {
            image.0[at * 8..at * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
        if let Ok(tables) = image.tables(form, Room::default()) {
            let table = symbols().with_modules(tables.into_iter().map(Into::into).collect());
            for symbol in table.iter() {
                let _ = (table.resolve(symbol.address), table.lookup(symbol.name));
            }
        }
    }
}
