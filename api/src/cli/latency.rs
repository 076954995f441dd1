//! How long calls took, for people.

use exoprobe_probes::Latency;

/// Bars of a small histogram, the least first.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The widest bar of a large one.
const WIDEST: u64 = 40;

/// A duration in the unit that suits it.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub(super) fn duration(nanoseconds: u64) -> String {
    let (unit, name) = match nanoseconds {
        0..1_000 => return format!("{nanoseconds}ns"),
        1_000..1_000_000 => (1e3, "us"),
        1_000_000..1_000_000_000 => (1e6, "ms"),
        _ => (1e9, "s"),
    };
    let value = nanoseconds as f64 / unit;
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$}{name}")
}

/// The first duration of a bucket.
fn start(bucket: usize) -> u64 {
    if bucket == 0 {
        0
    } else {
        1_u64.checked_shl(u32::try_from(bucket).unwrap_or(u32::MAX)).unwrap_or(u64::MAX)
    }
}

/// From the first bucket that has calls on.
fn used(latency: &Latency) -> (usize, &[u64]) {
    let first = latency.buckets.iter().position(|count| *count > 0);
    let first = first.unwrap_or(latency.buckets.len());
    (first, &latency.buckets[first..])
}

/// A histogram on one line: the first duration, a bar for each power of two, and the end of the
/// last. Empty without calls.
pub(super) fn sparkline(latency: &Latency) -> String {
    let (first, counts) = used(latency);
    let Some(most) = counts.iter().copied().max().filter(|most| *most > 0) else {
        return String::new();
    };
    let bar = |count: &u64| match count {
        0 => ' ',
        _ => {
            BARS[usize::try_from(u128::from(*count - 1) * 8 / u128::from(most)).unwrap_or(0).min(7)]
        }
    };
    let bars: String = counts.iter().map(bar).collect();
    format!("{} {bars} {}", duration(start(first)), duration(start(first + counts.len())))
}

/// A histogram of several lines, a power of two each.
pub(super) fn distribution(latency: &Latency) -> String {
    let (first, counts) = used(latency);
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    let mut text = format!("{:>8} .. {:<8} {:>10}\n", "took", "", "calls");
    for (bucket, count) in (first..).zip(counts) {
        let width = u128::from(*count) * u128::from(WIDEST) / u128::from(most);
        let bar = "*".repeat(usize::try_from(width).unwrap_or(0));
        let [from, to] = [bucket, bucket + 1].map(|bucket| duration(start(bucket)));
        text.push_str(&format!("{from:>8} .. {to:<8} {count:>10} |{bar:<40}|\n"));
    }
    let of = |thousandths| latency.quantile(thousandths).map_or("-".to_owned(), duration);
    text.push_str(&format!(
        "mean {}, half within {}, 99% within {}, longest {}\n",
        duration(latency.total_ns / latency.calls.max(1)),
        of(500),
        of(990),
        duration(latency.max_ns)
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_three_digits() {
        let cases = [
            (0, "0ns"),
            (999, "999ns"),
            (1_000, "1.00us"),
            (12_345, "12.3us"),
            (999_499, "999us"),
            (1_250_000, "1.25ms"),
            (99_960_000, "100ms"),
            (2_000_000_000, "2.00s"),
        ];
        for (nanoseconds, text) in cases {
            assert_eq!(duration(nanoseconds), text);
        }
        assert!(duration(u64::MAX).ends_with('s'));
    }

    #[test]
    fn histograms_begin_where_calls_are() {
        let mut latency =
            Latency { calls: 13, total_ns: 13_000, max_ns: 7_000, buckets: vec![0; 10] };
        latency.buckets.extend([8, 0, 5]);
        assert_eq!(sparkline(&latency), "1.02us █ ▅ 8.19us");
        let lines = distribution(&latency);
        let lines: Vec<_> = lines.lines().collect();
        assert_eq!(lines.len(), 5);
        assert_eq!(lines[1], format!("  1.02us .. 2.05us            8 |{}|", "*".repeat(40)));
        assert_eq!(
            lines[3],
            format!("  4.10us .. 8.19us            5 |{}{}|", "*".repeat(25), " ".repeat(15))
        );
        assert_eq!(lines[4], "mean 1.00us, half within 2.05us, 99% within 7.00us, longest 7.00us");
        assert_eq!(sparkline(&Latency::default()), "");
        // Whatever a service says.
        let wild = Latency { buckets: vec![u64::MAX; 3], ..Latency::default() };
        assert_eq!(sparkline(&wild).chars().filter(|c| *c == '█').count(), 3);
        let wild = Latency { buckets: vec![1; 100], ..Latency::default() };
        assert!(distribution(&wild).lines().count() == 102 && !sparkline(&wild).is_empty());
    }
}
