//! BTF made by hand: for tests, and for fuzzers to begin with.

use super::Btf;

pub const INT: u32 = 1;
pub const POINTER: u32 = 2;
pub const ARRAY: u32 = 3;
pub const STRUCT: u32 = 4;
pub const UNION: u32 = 5;
pub const ENUM: u32 = 6;
pub const FORWARD: u32 = 7;
pub const TYPEDEF: u32 = 8;
pub const CONST: u32 = 10;
pub const FUNCTION: u32 = 12;
pub const PROTOTYPE: u32 = 13;
pub const TYPE_TAG: u32 = 18;
pub const ENUM64: u32 = 19;

/// Writes BTF.
pub struct Sample {
    pub words: Vec<u32>,
    strings: Vec<u8>,
    pub count: u32,
}

impl Default for Sample {
    fn default() -> Self {
        Self { words: Vec::new(), strings: vec![0], count: 0 }
    }
}

impl Sample {
    pub fn name(&mut self, name: &str) -> u32 {
        if name.is_empty() {
            return 0;
        }
        let at = u32::try_from(self.strings.len()).expect("it is small");
        self.strings.extend_from_slice(name.as_bytes());
        self.strings.push(0);
        at
    }

    pub fn add(&mut self, name: &str, info: u32, third: u32, more: &[u32]) -> u32 {
        let name = self.name(name);
        self.words.extend([name, info, third]);
        self.words.extend(more);
        self.count += 1;
        self.count
    }

    pub fn int(&mut self, name: &str, size: u32, signed: bool) -> u32 {
        self.add(name, INT << 24, size, &[(u32::from(signed) << 24) | (size * 8)])
    }

    pub fn to(&mut self, kind: u32, to: u32) -> u32 {
        self.add("", kind << 24, to, &[])
    }

    /// Members: name, type, offset in bits.
    pub fn composite(
        &mut self,
        kind: u32,
        name: &str,
        size: u32,
        members: &[(&str, u32, u32)],
    ) -> u32 {
        let more: Vec<u32> =
            members.iter().flat_map(|(name, id, offset)| [self.name(name), *id, *offset]).collect();
        self.add(name, kind << 24 | u32::try_from(members.len()).expect("it is small"), size, &more)
    }

    pub fn function(&mut self, name: &str, result: u32, params: &[(&str, u32)]) -> u32 {
        let more: Vec<u32> = params.iter().flat_map(|(name, id)| [self.name(name), *id]).collect();
        let info = PROTOTYPE << 24 | u32::try_from(params.len()).expect("it is small");
        let prototype = self.add("", info, result, &more);
        self.add(name, FUNCTION << 24, prototype, &[])
    }

    pub fn bytes(&self) -> Vec<u8> {
        let types = u32::try_from(self.words.len() * 4).expect("it is small");
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        for word in [24, 0, types, types, u32::try_from(self.strings.len()).expect("it is small")] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.words.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(&self.strings);
        bytes
    }

    pub fn btf(&self) -> Btf {
        Btf::parse(&self.bytes()).expect("it is small")
    }
}

/// A kernel's worth, in small.
pub fn kernel() -> Sample {
    let mut s = Sample::default();
    let int = s.int("int", 4, true);
    let char = s.int("char", 1, true);
    let constant = s.to(CONST, char);
    let text = s.to(POINTER, constant);
    let forward = s.add("later", FORWARD << 24, 0, &[]);
    let later = s.to(POINTER, forward);
    let name = s.add("", ARRAY << 24, 0, &[char, int, 16]);
    let inner = s.composite(STRUCT, "", 8, &[("a", int, 0), ("b", int, 32)]);
    let either = s.composite(UNION, "", 8, &[("", inner, 0), ("whole", later, 0)]);
    let pid = s.add("pid_t", TYPEDEF << 24, int, &[]);
    let members = [
        ("pid", pid, 0),
        ("comm", name, 32),
        ("", either, 192),
        ("next", later, 256),
        ("text", text, 320),
    ];
    let task = s.composite(STRUCT, "task", 48, &members);
    let task = s.to(POINTER, task);
    s.function("get", int, &[("fd", int), ("name", text), ("task", task)]);
    s
}
