//! Printed figures.

use std::time::{Duration, Instant};

/// Prints one figure beside what is asked of it.
pub(crate) fn figure(name: &str, value: &str, asked: &str) {
    println!("{name:<58} {value:>14}   {asked}");
}

pub(crate) fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

/// The least of the times that `work` takes, in milliseconds. Its result is dropped after its time.
pub(crate) fn least_milliseconds<T>(rounds: usize, mut work: impl FnMut() -> T) -> f64 {
    least(rounds, || {
        let begun = Instant::now();
        let _kept = work();
        begun.elapsed().as_secs_f64() * 1e3
    })
}

/// The least of so many measurements.
pub(crate) fn least(rounds: usize, measure: impl FnMut() -> f64) -> f64 {
    std::iter::repeat_with(measure).take(rounds).fold(f64::INFINITY, f64::min)
}
