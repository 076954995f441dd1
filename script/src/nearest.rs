//! The name that a wrong one was meant to be.

/// Likeness (Jaro-Winkler) from which on a name is offered.
const LIKE_MIN: f64 = 0.85;
/// Characters at the beginning that count more when they are the same.
const PREFIX_MAX: usize = 4;
/// Part of the difference that each of them removes.
const PREFIX_WEIGHT: f64 = 0.1;

/// The name that is most like `wrong`, if it is enough so.
pub(crate) fn nearest<'a>(
    wrong: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let letters = Letters::of(wrong);
    // A kernel has some 100,000 functions: most are ruled out without the likeness itself.
    let like = known.into_iter().filter(|name| letters.bound(name) >= LIKE_MIN);
    let scored = like.map(|name| (strsim::jaro_winkler(wrong, name), name));
    let best = scored.max_by(|one, other| one.0.total_cmp(&other.0))?;
    (best.0 >= LIKE_MIN).then_some(best.1)
}

/// A word and how often it has each character; only of ASCII.
struct Letters<'a> {
    word: &'a str,
    counts: [u16; 128],
}

impl<'a> Letters<'a> {
    fn of(word: &'a str) -> Self {
        let mut counts = [0u16; 128];
        for byte in word.bytes().filter(u8::is_ascii) {
            let count = &mut counts[usize::from(byte)];
            *count = count.saturating_add(1);
        }
        Self { word, counts }
    }

    /// The likeness to `name` is not above this. Jaro's is
    /// `(matches / len + matches / other_len + in_order / matches) / 3`, and two words have at most
    /// as many matches as they have characters in common.
    fn bound(&self, name: &str) -> f64 {
        let is_simple = |word: &str| word.is_ascii() && (1..=1000).contains(&word.len());
        if !is_simple(self.word) || !is_simple(name) {
            return 1.0;
        }
        let mut left = self.counts;
        let mut common = 0u32;
        for byte in name.bytes() {
            let count = &mut left[usize::from(byte)];
            common += u32::from(*count > 0);
            *count = count.saturating_sub(1);
        }
        let share = |len: usize| f64::from(common) / f64::from(u16::try_from(len).unwrap_or(1));
        let jaro = (share(self.word.len()) + share(name.len()) + 1.0) / 3.0;
        let both = self.word.bytes().zip(name.bytes()).take(PREFIX_MAX);
        let prefix = both.map(|(one, other)| one == other).take_while(|same| *same);
        // A little more, for what the sums are rounded by.
        jaro + PREFIX_WEIGHT * prefix.map(|_| 1.0).sum::<f64>() * (1.0 - jaro) + 1e-9
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_that_is_like_enough_is_offered() {
        let known = ["do_sys_open", "do_sys_openat2", "vfs_read", "", "größe"];
        assert_eq!(nearest("do_sys_opena2", known), Some("do_sys_openat2"));
        assert_eq!(nearest("vfs_raed", known), Some("vfs_read"));
        assert_eq!(nearest("grösse", known), Some("größe"));
        assert_eq!(nearest("blk_account_io", known), None);
        assert_eq!(nearest("", known), Some(""));
        assert_eq!(nearest("x", []), None);
    }

    proptest! {
        #[test]
        fn no_likeness_is_above_its_bound(one in "[a-c_é]{0,12}", other in "[a-c_é]{0,12}") {
            prop_assert!(strsim::jaro_winkler(&one, &other) <= Letters::of(&one).bound(&other));
        }

        #[test]
        fn the_nearest_is_that_of_all(wrong in "[a-c_]{0,9}", known in prop::collection::vec("[a-c_]{0,9}", 0..40)) {
            let scored = known.iter().map(|name| (strsim::jaro_winkler(&wrong, name), name.as_str()));
            let best = scored.max_by(|one, other| one.0.total_cmp(&other.0));
            let all = best.filter(|(like, _)| *like >= LIKE_MIN).map(|(_, name)| name);
            prop_assert_eq!(nearest(&wrong, known.iter().map(String::as_str)), all);
        }
    }
}
