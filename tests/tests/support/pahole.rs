//! Types compared with pahole's output.

use exoprobe_introspect::Btf;
use exoprobe_introspect::btf::MemberLayout;
use std::path::Path;

/// A member: its declaration without blanks, offset and size in bytes.
type Place = (String, u64, u64);

fn compact(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

/// Reads pahole's output of members: `DECLARATION; /* OFFSET[:BIT] SIZE */`.
fn members_of(pahole: &str) -> Vec<Place> {
    let member = |line: &str| {
        let (declaration, place) = line.trim().rsplit_once("/*")?;
        let mut numbers =
            place.trim_end().strip_suffix("*/")?.split([' ', ':']).filter(|n| !n.is_empty());
        let (offset, size) = (numbers.next()?.parse().ok()?, numbers.next_back()?.parse().ok()?);
        let declaration = declaration.trim().strip_suffix(';')?;
        let declaration = declaration.split("__attribute__").next()?;
        // The end of a struct that is written out.
        let declaration = declaration.trim_start_matches('}');
        Some((compact(declaration), offset, size))
    };
    pahole.lines().filter_map(member).collect()
}

fn read(members: &[MemberLayout]) -> Vec<Place> {
    let each = members.iter().flat_map(|member| {
        let width = member.bits.map_or(String::new(), |(bits, _)| format!(":{bits}"));
        let declaration = member.declaration.split("{...}").last().unwrap_or_default();
        let own = (compact(declaration) + &width, member.offset, member.size);
        read(&member.members).into_iter().chain([own])
    });
    each.collect()
}

/// Types match pahole's output for the kernel's DWARF.
pub(crate) fn assert_matches_pahole(types: &Btf, pahole: &Path) {
    let told_all = std::fs::read_to_string(pahole).unwrap();
    for name in ["task_struct", "file", "sk_buff"] {
        let start = told_all.find(&format!("struct {name} {{")).unwrap_or_else(|| panic!("{name}"));
        let text = &told_all[start..];
        // Its end may carry attributes.
        let text = &text[..text.find("\n}").expect("its end")];
        let (expected, layout) = (members_of(text), types.about(name).unwrap());
        let read = read(&layout.members);
        for (expected, read) in expected.iter().zip(&read) {
            assert_eq!(expected, read, "of {name}");
        }
        assert_eq!(expected.len(), read.len(), "of {name}");
        assert!(expected.len() > 20, "{expected:?}");
    }
}
