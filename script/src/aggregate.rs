//! Aggregates of maps: numbers and histograms.

use std::collections::BTreeMap;

use crate::types::{Aggregate, TseriesBy};
use crate::value::Value;

/// Buckets of a logarithmic histogram before those of the powers of two: of negative numbers,
/// and of 0.
const BEFORE_POWERS: usize = 2;

/// The content of an entry.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    Value(Value),
    Count(i64),
    Sum(i64),
    /// Sum and count, and whether numbers have signs.
    Avg {
        total: i64,
        count: u64,
        signed: bool,
    },
    Stats {
        total: i64,
        count: u64,
        signed: bool,
    },
    /// Least or greatest.
    Extreme {
        value: Option<i64>,
        greatest: bool,
        signed: bool,
    },
    Hist {
        bits: u8,
        buckets: Vec<u64>,
    },
    Lhist {
        min: i64,
        max: i64,
        step: i64,
        buckets: Vec<u64>,
    },
    Tseries(Box<Series>),
}

/// Numbers by time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Series {
    pub(crate) interval: u64,
    max_buckets: usize,
    by: TseriesBy,
    pub(crate) signed: bool,
    /// By the number of their interval since the guest's boot: value, sum and count.
    buckets: BTreeMap<u64, (i64, i64, u64)>,
}

impl Cell {
    pub(crate) fn new(aggregate: Aggregate) -> Self {
        match aggregate {
            Aggregate::Count => Self::Count(0),
            Aggregate::Sum { .. } => Self::Sum(0),
            Aggregate::Avg { signed } => Self::Avg { total: 0, count: 0, signed },
            Aggregate::Stats { signed } => Self::Stats { total: 0, count: 0, signed },
            Aggregate::Min { signed } => Self::Extreme { value: None, greatest: false, signed },
            Aggregate::Max { signed } => Self::Extreme { value: None, greatest: true, signed },
            Aggregate::Hist { bits } => Self::Hist { bits, buckets: Vec::new() },
            Aggregate::Lhist { min, max, step } => {
                Self::Lhist { min, max, step, buckets: Vec::new() }
            }
            Aggregate::Tseries { interval, buckets, by, signed } => {
                Self::Tseries(Box::new(Series {
                    interval: interval.max(1),
                    max_buckets: buckets as usize,
                    by,
                    signed,
                    buckets: BTreeMap::new(),
                }))
            }
        }
    }

    /// Bytes that it takes beside its own size.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Self::Value(value) => value.heap_bytes(),
            Self::Hist { buckets, .. } | Self::Lhist { buckets, .. } => {
                buckets.capacity() * size_of::<u64>()
            }
            Self::Tseries(series) => {
                size_of::<Series>() + series.buckets.len() * size_of::<(u64, (i64, i64, u64))>()
            }
            _ => 0,
        }
    }

    pub(crate) fn add(&mut self, number: i64, time: u64) {
        match self {
            Self::Value(_) => {}
            Self::Count(count) => *count = count.wrapping_add(1),
            Self::Sum(sum) => *sum = sum.wrapping_add(number),
            Self::Avg { total, count, .. } | Self::Stats { total, count, .. } => {
                *total = total.wrapping_add(number);
                *count += 1;
            }
            Self::Extreme { value, greatest, signed } => {
                let beats = |old: i64| match (*greatest, *signed) {
                    (true, true) => number > old,
                    (false, true) => number < old,
                    (true, false) => number.cast_unsigned() > old.cast_unsigned(),
                    (false, false) => number.cast_unsigned() < old.cast_unsigned(),
                };
                if value.is_none_or(beats) {
                    *value = Some(number);
                }
            }
            Self::Hist { bits, buckets } => count(buckets, log_bucket(number, *bits)),
            Self::Lhist { min, max, step, buckets } => {
                count(buckets, linear_bucket(number, *min, *max, *step));
            }
            Self::Tseries(series) => series.add(number, time),
        }
    }

    pub(crate) fn zero(&mut self) {
        match self {
            Self::Value(Value::Int(value)) => *value = 0,
            Self::Value(_) => {}
            Self::Count(value) | Self::Sum(value) => *value = 0,
            Self::Avg { total, count, .. } | Self::Stats { total, count, .. } => {
                (*total, *count) = (0, 0);
            }
            Self::Extreme { value, .. } => *value = None,
            Self::Hist { buckets, .. } | Self::Lhist { buckets, .. } => buckets.clear(),
            Self::Tseries(series) => series.buckets.clear(),
        }
    }

    /// The value as an expression has it.
    pub(crate) fn value(&self) -> Value {
        match self {
            Self::Value(value) => value.clone(),
            Self::Count(value) | Self::Sum(value) => Value::Int(*value),
            Self::Avg { total, count, signed } | Self::Stats { total, count, signed } => {
                Value::Int(average(*total, *count, *signed))
            }
            Self::Extreme { value, .. } => Value::Int(value.unwrap_or(0)),
            Self::Hist { .. } | Self::Lhist { .. } | Self::Tseries(_) => Value::Int(0),
        }
    }
}

impl Series {
    fn add(&mut self, number: i64, time: u64) {
        let entry = self.buckets.entry(time / self.interval).or_insert((number, 0, 0));
        entry.1 = entry.1.wrapping_add(number);
        entry.2 += 1;
        let less = match self.signed {
            true => number < entry.0,
            false => number.cast_unsigned() < entry.0.cast_unsigned(),
        };
        match self.by {
            TseriesBy::Max if less => {}
            TseriesBy::Min if !less => {}
            _ => entry.0 = number,
        }
        while self.buckets.len() > self.max_buckets {
            self.buckets.pop_first();
        }
    }

    /// Start of each interval in nanoseconds, and its value; the oldest first. Intervals without
    /// a number have none.
    pub(crate) fn values(&self) -> impl Iterator<Item = (u64, i64)> {
        self.buckets.iter().map(|(index, (value, total, count))| {
            let value = match self.by {
                TseriesBy::Avg => average(*total, *count, self.signed),
                TseriesBy::Sum => *total,
                _ => *value,
            };
            (index.saturating_mul(self.interval), value)
        })
    }
}

fn count(buckets: &mut Vec<u64>, index: usize) {
    if buckets.len() <= index {
        buckets.resize(index + 1, 0);
    }
    buckets[index] += 1;
}

/// The average, rounded to zero.
pub(crate) fn average(total: i64, count: u64, signed: bool) -> i64 {
    match signed {
        true => i64::try_from(count).map_or(0, |count| total.checked_div(count).unwrap_or(0)),
        false => total.cast_unsigned().checked_div(count).unwrap_or(0).cast_signed(),
    }
}

/// The bucket of a number: 0 for negative ones, 1 for 0, then 2 to the power of `bits` for each
/// power of two; numbers that are too small to be divided have one bucket each.
pub(crate) fn log_bucket(number: i64, bits: u8) -> usize {
    let Ok(number) = u64::try_from(number) else { return 0 };
    if number < 2 << bits {
        return 1 + usize::try_from(number).unwrap_or(0);
    }
    let power = number.ilog2();
    let within = (number >> (power - u32::from(bits))) - (1 << bits);
    let whole = (u64::from(power - u32::from(bits)) + 1) << bits;
    1 + usize::try_from(whole + within).unwrap_or(0)
}

/// The least number of a bucket from 1 on; the bucket after it begins where it ends.
pub(crate) fn log_start(index: usize, bits: u8) -> u128 {
    let index = (index - (BEFORE_POWERS - 1)) as u128;
    if index < 2 << bits {
        return index;
    }
    let power = (index >> bits) - 1;
    let within = index & ((1 << bits) - 1);
    ((1 << bits) + within) << power
}

/// The bucket of a number: 0 below `min`, the last from `max` on.
pub(crate) fn linear_bucket(number: i64, min: i64, max: i64, step: i64) -> usize {
    if number < min {
        return 0;
    }
    let index = if number >= max { (max - min) / step } else { (number - min) / step };
    1 + usize::try_from(index).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_in_the_bucket_between_its_bounds() {
        let numbers = [0, 1, 2, 3, 4, 7, 8, 1000, 1023, 1024, i64::MAX];
        for bits in 0..=5 {
            for number in numbers {
                let index = log_bucket(number, bits);
                let value = u128::from(number.cast_unsigned());
                assert!(log_start(index, bits) <= value, "{number} {bits}");
                assert!(value < log_start(index + 1, bits), "{number} {bits}");
            }
            assert_eq!(log_bucket(-1, bits), 0);
        }
        assert_eq!([0, 1, 2, 3, 4].map(|number| log_bucket(number, 0)), [1, 2, 3, 3, 4]);
    }

    #[test]
    fn numbers_outside_of_a_linear_histogram_have_buckets_of_their_own() {
        let bucket = |number| linear_bucket(number, 10, 50, 20);
        assert_eq!([9, 10, 29, 30, 49, 50, 1000].map(bucket), [0, 1, 1, 2, 2, 3, 3]);
    }

    #[test]
    fn averages_keep_their_signs() {
        assert_eq!(average(-3, 3, true), -1);
        assert_eq!(average(-3, 3, false), 6_148_914_691_236_517_204);
        assert_eq!(average(5, 0, true), 0);
    }
}
