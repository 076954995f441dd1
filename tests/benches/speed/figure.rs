//! Printed figures.

/// Prints one figure beside what is asked of it.
pub(crate) fn figure(name: &str, value: &str, asked: &str) {
    println!("{name:<58} {value:>14}   {asked}");
}

/// The least of so many measurements.
pub(crate) fn least(rounds: usize, measure: impl FnMut() -> f64) -> f64 {
    std::iter::repeat_with(measure).take(rounds).fold(f64::INFINITY, f64::min)
}
