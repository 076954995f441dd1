//! Histograms as bpftrace prints them.

/// The sum of the counts of all lines of all histograms: `[16, 32)   3 |@@@@   |`.
pub(crate) fn sum(text: &str) -> u64 {
    let counts = text.lines().filter_map(|line| line.split_once('|')?.0.split_whitespace().last());
    counts.filter_map(|count| count.parse::<u64>().ok()).sum()
}
