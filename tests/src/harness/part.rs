//! A part of the cases, for one of several processes.

use std::num::NonZero;
use std::str::FromStr;

use super::PART_ENV;

/// Which cases: of each `of`, the one at `index`. Neighbours take about as long as each other, so
/// that the parts do, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    index: usize,
    of: NonZero<usize>,
}

/// A malformed text of [`PART_ENV`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{PART_ENV}: `{0}` is not PART/PARTS, as 1/2")]
pub(super) struct PartError(String);

impl Part {
    /// All of it.
    pub(super) const WHOLE: Self = Self { index: 0, of: NonZero::<usize>::MIN };

    /// Whether the case at this place in the list is in it.
    pub(super) fn has(self, case: usize) -> bool {
        case % self.of == self.index
    }
}

impl FromStr for Part {
    type Err = PartError;

    fn from_str(text: &str) -> Result<Self, PartError> {
        let parse = || {
            let (part, of) = text.split_once('/')?;
            let (part, of): (usize, NonZero<usize>) = (part.parse().ok()?, of.parse().ok()?);
            let index = part.checked_sub(1).filter(|index| *index < of.get())?;
            Some(Self { index, of })
        };
        parse().ok_or_else(|| PartError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_is_in_one_part() {
        let parts: Vec<Part> = ["1/3", "2/3", "3/3"].map(|text| text.parse().unwrap()).into();
        for case in 0..10 {
            assert_eq!(parts.iter().filter(|part| part.has(case)).count(), 1, "{case}");
            assert!(Part::WHOLE.has(case));
        }
    }

    #[test]
    fn what_is_no_part_is_refused() {
        for bad in ["", "1", "0/2", "3/2", "1/0", "a/b", "1/2/3"] {
            assert_eq!(bad.parse::<Part>(), Err(PartError(bad.to_owned())));
        }
    }
}
