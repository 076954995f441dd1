//! Modules made by hand: for tests, and for fuzzers to begin with.

use crate::btf::sample::{ARRAY, ENUM, POINTER, STRUCT, Sample};

/// Offset in a module of its `struct mod_kallsyms`.
const KALLSYMS: u64 = 0x180;
/// Offset of its symbols; their letters follow, and then their names.
const SYMTAB: u64 = 0x200;
/// Bytes of an `Elf64_Sym`.
const SYMBOL_LEN: usize = 24;

/// Before or since Linux 6.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `core_layout`, and no letters of symbols.
    Layouts,
    /// `mem`.
    Memories,
}

/// The kinds of types.
pub fn types(form: Form) -> Sample {
    let mut s = Sample::default();
    let word = s.int("unsigned int", 4, false);
    let char = s.int("char", 1, true);
    let pointer = s.to(POINTER, 0);
    let (live, init) = (s.name("MODULE_STATE_LIVE"), s.name("MOD_INIT_TEXT"));
    let state = s.add("module_state", ENUM << 24 | 1, 4, &[live, 0]);
    s.add("mod_mem_type", ENUM << 24 | 1, 4, &[init, 4]);
    let name = s.add("", ARRAY << 24, 0, &[char, word, 56]);
    let list = s.composite(STRUCT, "list_head", 16, &[("next", pointer, 0), ("prev", pointer, 64)]);
    let bits = |bytes: u32| bytes * 8;
    let mut members = vec![
        ("state", state, 0),
        ("list", list, bits(8)),
        ("name", name, bits(24)),
        ("extable", pointer, bits(96)),
        ("num_exentries", word, bits(104)),
        ("kallsyms", pointer, bits(288)),
    ];
    let mut tables =
        vec![("symtab", pointer, 0), ("num_symtab", word, 64), ("strtab", pointer, 128)];
    match form {
        Form::Memories => {
            let memory = [("base", pointer, 0), ("size", word, bits(16))];
            let memory = s.composite(STRUCT, "module_memory", 24, &memory);
            let memories = s.add("", ARRAY << 24, 0, &[memory, word, 7]);
            members.extend([
                ("mem", memories, bits(112)),
                ("jump_entries", pointer, bits(296)),
                ("num_jump_entries", word, bits(304)),
                ("static_call_sites", pointer, bits(312)),
                ("num_static_call_sites", word, bits(320)),
                ("klp", char, bits(324)),
            ]);
            tables.push(("typetab", pointer, 192));
        }
        Form::Layouts => {
            let layout = [("base", pointer, 0), ("size", word, 64), ("text_size", word, 96)];
            let layout = s.composite(STRUCT, "module_layout", 24, &layout);
            members
                .extend([("core_layout", layout, bits(112)), ("init_layout", layout, bits(144))]);
        }
    }
    s.composite(STRUCT, "module", 384, &members);
    s.composite(STRUCT, "mod_kallsyms", 32, &tables);
    s
}

/// A module of a sample.
#[derive(Clone, Debug, Default)]
pub struct SampleModule {
    pub name: &'static str,
    /// `enum module_state`.
    pub state: u32,
    /// Address of its struct; its symbols follow.
    pub at: u64,
    /// Where its text is, and how many bytes.
    pub text: (u64, u32),
    pub init_text: (u64, u32),
    pub extable: (u64, u32),
    pub jump_labels: (u64, u32),
    pub static_calls: (u64, u32),
    /// Since Linux 6.4 only.
    pub live_patch: bool,
    /// Name, address, size, letter; `U` is of somewhere else.
    pub symbols: Vec<(&'static str, u64, u64, u8)>,
}

impl SampleModule {
    /// Its struct, with the list's next place, and its symbols.
    fn write(&self, form: Form, next: u64, put: &mut dyn FnMut(u64, &[u8])) {
        let word = |put: &mut dyn FnMut(u64, &[u8]), at, value: u64| {
            put(self.at + at, &value.to_le_bytes());
        };
        put(self.at, &self.state.to_le_bytes());
        word(put, 8, next);
        put(self.at + 24, self.name.as_bytes());
        put(self.at + 24 + self.name.len() as u64, &[0]);
        let (text, init, size) = match form {
            Form::Memories => (112, 112 + 4 * 24, 16),
            Form::Layouts => (112, 144, 12),
        };
        let areas = [
            (text, size, self.text),
            (init, size, self.init_text),
            (96, 8, self.extable),
            (296, 8, self.jump_labels),
            (312, 8, self.static_calls),
        ];
        let kept = if form == Form::Memories { 5 } else { 3 };
        for (base, size, (at, len)) in areas.into_iter().take(kept) {
            word(put, base, at);
            put(self.at + base + size, &len.to_le_bytes());
        }
        if form == Form::Memories {
            put(self.at + 324, &[u8::from(self.live_patch)]);
        }
        word(put, 288, self.at + KALLSYMS);
        self.write_symbols(put);
    }

    fn write_symbols(&self, put: &mut dyn FnMut(u64, &[u8])) {
        let (mut symtab, mut letters, mut names) = (vec![0; SYMBOL_LEN], vec![b'?'], vec![0]);
        for (name, address, size, letter) in &self.symbols {
            symtab.extend(u32::try_from(names.len()).expect("it is small").to_le_bytes());
            symtab.extend([0x12, 0, u8::from(*letter != b'U'), 0]);
            symtab.extend(address.to_le_bytes());
            symtab.extend(size.to_le_bytes());
            letters.push(*letter);
            names.extend_from_slice(name.as_bytes());
            names.push(0);
        }
        let typetab = self.at + SYMTAB + symtab.len() as u64;
        let strtab = typetab + letters.len() as u64;
        let places = [self.at + SYMTAB, letters.len() as u64, strtab, typetab];
        for (offset, place) in (0..).step_by(8).zip(places) {
            put(self.at + KALLSYMS + offset, &place.to_le_bytes());
        }
        put(self.at + SYMTAB, &symtab);
        put(typetab, &letters);
        put(strtab, &names);
    }
}

/// Writes the list that begins at `head`, and the modules.
pub fn write(form: Form, head: u64, modules: &[SampleModule], put: &mut dyn FnMut(u64, &[u8])) {
    let places: Vec<u64> = modules.iter().map(|module| module.at + 8).chain([head]).collect();
    put(head, &places[0].to_le_bytes());
    for (module, next) in modules.iter().zip(&places[1..]) {
        module.write(form, *next, put);
    }
}
