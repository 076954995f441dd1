//! BTF: bytes as they come, or, after a first byte that is odd, changes to a whole one: offsets (16
//! bits) and bytes.

use std::sync::LazyLock;

use exoprobe_introspect::Btf;
use exoprobe_introspect::btf::{TypeId, sample};

/// Types that are asked about, of those that there are.
const ASKED: u32 = 64;

pub(crate) fn run(data: &[u8]) {
    static WHOLE: LazyLock<Vec<u8>> = LazyLock::new(|| sample::kernel().bytes());
    let bytes = match data.split_first() {
        Some((first, changes)) if first % 2 == 1 => {
            let mut bytes = WHOLE.clone();
            for change in changes.chunks_exact(3) {
                let at = usize::from(u16::from_le_bytes([change[0], change[1]]));
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = change[2];
                }
            }
            bytes
        }
        Some((_, bytes)) => bytes.to_vec(),
        None => return,
    };
    let Ok(btf) = Btf::parse(&bytes) else { return };
    assert!(btf.len() * 12 <= bytes.len(), "a type takes three words at least");
    for id in (0..=ASKED).map(TypeId) {
        let _ = (btf.size_of(id), btf.declaration(id, "x"), btf.parameters(id));
        let _ = (btf.field(id, "a.b"), btf.layout(id, "x"), btf.enum_values(id).count());
    }
    for (name, id) in btf.search("*").take(64) {
        assert!(btf.named(name).any(|other| other == id) && btf.about(name).is_some());
    }
}
