//! Shell-like patterns over symbol names.

/// Whether all of `name` matches `pattern`, in which `*` stands for any run of bytes and `?` for
/// any one. Takes at most the product of both lengths, whatever the pattern.
pub(crate) fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // The last star and how much of the name it has taken: only that one need be retried.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[n] => {
                p += 1;
                n += 1;
            }
            _ => {
                let Some((at, taken)) = star else { return false };
                star = Some((at, taken + 1));
                (p, n) = (at + 1, taken + 1);
            }
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn model(pattern: &[u8], name: &[u8]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some((b'*', rest)) => (0..=name.len()).any(|skip| model(rest, &name[skip..])),
            Some((byte, rest)) => name
                .split_first()
                .is_some_and(|(head, tail)| (*byte == b'?' || byte == head) && model(rest, tail)),
        }
    }

    #[test]
    fn stars_and_question_marks() {
        for (pattern, name, expected) in [
            ("vfs_*", "vfs_read", true),
            ("*_read", "vfs_read", true),
            ("vfs_?ead", "vfs_read", true),
            ("*", "", true),
            ("?", "", false),
            ("vfs", "vfs_read", false),
            ("*a*b*c", "xaxbxbxc", true),
            ("", "x", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_recursive_definition(pattern in "[ab*?]{0,8}", name in "[ab]{0,10}") {
            prop_assert_eq!(
                matches(pattern.as_bytes(), name.as_bytes()),
                model(pattern.as_bytes(), name.as_bytes())
            );
        }
    }
}
