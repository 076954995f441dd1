//! Histograms as bars.

use crate::aggregate::{Cell, log_start};

/// Characters of the longest bar.
const BAR_MAX: u64 = 52;
/// Characters of a range.
const RANGE_WIDTH: usize = 16;
/// Characters of a count.
const COUNT_WIDTH: usize = 8;

/// A bucket that is shown.
pub(super) struct Bucket {
    /// `None` for all numbers below.
    pub(super) min: Option<i128>,
    /// The number after its last; `None` for all numbers above.
    pub(super) end: Option<i128>,
    pub(super) count: u64,
    /// With K, M, G.
    scaled: bool,
}

/// The buckets from the first to the last with a count.
pub(super) fn buckets(cell: &Cell) -> Vec<Bucket> {
    let (all, scaled) = match cell {
        Cell::Hist { buckets, .. } => (buckets, true),
        Cell::Lhist { buckets, .. } => (buckets, false),
        _ => return Vec::new(),
    };
    let used = |count: &u64| *count > 0;
    let Some(first) = all.iter().position(used) else { return Vec::new() };
    let last = all.iter().rposition(used).unwrap_or(first);
    (first..=last)
        .map(|index| {
            let (min, end) = bounds(cell, index);
            Bucket { min, end, count: all[index], scaled }
        })
        .collect()
}

fn bounds(cell: &Cell, index: usize) -> (Option<i128>, Option<i128>) {
    match cell {
        Cell::Hist { .. } if index == 0 => (None, Some(0)),
        Cell::Hist { bits, .. } => {
            let start = |index| i128::try_from(log_start(index, *bits)).unwrap_or(i128::MAX);
            (Some(start(index)), Some(start(index + 1)))
        }
        Cell::Lhist { min, max, step, .. } => {
            let (min, max, step) = (i128::from(*min), i128::from(*max), i128::from(*step));
            let last = usize::try_from((max - min) / step).unwrap_or(usize::MAX).saturating_add(1);
            let steps = i128::try_from(index).unwrap_or(0) - 1;
            match index {
                0 => (None, Some(min)),
                index if index >= last => (Some(max), None),
                _ => (Some(min + steps * step), Some(min + (steps + 1) * step)),
            }
        }
        _ => (None, None),
    }
}

/// Lines of a histogram; counts are divided by `div`.
pub(super) fn lines(cell: &Cell, div: u64) -> String {
    let buckets = buckets(cell);
    let most = buckets.iter().map(|bucket| bucket.count).max().unwrap_or(1).max(1);
    let mut text = String::new();
    for bucket in &buckets {
        let len = u128::from(bucket.count) * u128::from(BAR_MAX) / u128::from(most);
        let len = usize::try_from(len).unwrap_or(0);
        let blanks = usize::try_from(BAR_MAX).unwrap_or(0).saturating_sub(len);
        let count = bucket.count / div.max(1);
        let range = bucket.range();
        let (bar, rest) = ("@".repeat(len), " ".repeat(blanks));
        text += &format!("{range:<RANGE_WIDTH$}{count:>COUNT_WIDTH$} |{bar}{rest}|\n");
    }
    text
}

impl Bucket {
    fn range(&self) -> String {
        let shown = |number: i128| if self.scaled { scaled(number) } else { number.to_string() };
        match (self.min, self.end) {
            (Some(min), Some(end)) if self.scaled && end == min + 1 => format!("[{}]", shown(min)),
            (Some(min), Some(end)) => format!("[{}, {})", shown(min), shown(end)),
            (None, Some(end)) => format!("(..., {})", shown(end)),
            (Some(min), None) => format!("[{}, ...)", shown(min)),
            (None, None) => String::new(),
        }
    }
}

/// A number with the largest suffix that divides it.
fn scaled(number: i128) -> String {
    let suffixes = ["", "K", "M", "G", "T", "P", "E"];
    let mut number = number;
    let mut index = 0;
    while number != 0 && number % 1024 == 0 && index + 1 < suffixes.len() {
        number /= 1024;
        index += 1;
    }
    format!("{number}{}", suffixes[index])
}
