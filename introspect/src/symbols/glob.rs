//! Shell-like patterns over symbol names.

/// Returns true if all of `name` matches `pattern`, in which `*` stands for any run of bytes, `?`
/// for any one, and `[a-z_]` for one of some (`[!a-z_]` for one of the others; a `[` that is not
/// closed is itself). Takes at most the product of both lengths, whatever the pattern.
#[must_use]
pub fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // The last star and how much of the name it has taken: only that one need be retried.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            _ => match one(&pattern[p..], name[n]) {
                Some(len) => {
                    p += len;
                    n += 1;
                }
                None => {
                    let Some((at, taken)) = star else { return false };
                    star = Some((at, taken + 1));
                    (p, n) = (at + 1, taken + 1);
                }
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// How many bytes of the pattern stand for this byte, if they do.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    let first = *pattern.first()?;
    let Some(set) = set(pattern) else { return (first == b'?' || first == byte).then_some(1) };
    let (not, mut members) = match set.strip_prefix(b"!") {
        Some(members) => (true, members),
        None => (false, set),
    };
    let mut found = false;
    while let [low, rest @ ..] = members {
        let (high, rest) = match rest {
            [b'-', high, rest @ ..] => (high, rest),
            _ => (low, rest),
        };
        found |= (*low..=*high).contains(&byte);
        members = rest;
    }
    (found != not).then_some(set.len() + 2)
}

/// The characters between brackets; a `]` may come first.
fn set(pattern: &[u8]) -> Option<&[u8]> {
    let rest = pattern.strip_prefix(b"[")?;
    let from = if rest.starts_with(b"!") { 2 } else { 1 };
    let end = rest.iter().skip(from).position(|byte| *byte == b']')? + from;
    Some(&rest[..end])
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
    fn brackets_are_one_of_some() {
        for (pattern, name, expected) in [
            ("[abc]", "b", true),
            ("[abc]", "d", false),
            ("[!abc]", "d", true),
            ("[!abc]", "a", false),
            ("x[0-9]*[a-f]", "x7--c", true),
            ("x[0-9]*", "xa", false),
            ("[]]", "]", true),
            ("[a-]", "-", true),
            ("[abc", "[abc", true),
            ("[z-a]", "m", false),
            ("*[0-9][0-9]", "a1b22", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
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
