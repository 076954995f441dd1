//! Time series as lines of stars.

use super::printer::Printer;
use super::value::number;
use crate::aggregate::Series;

/// Characters between the two borders, and these.
const WIDTH: usize = 53;
/// Characters of a time and the blank after it.
const TIME_WIDTH: usize = 13;

impl Printer<'_> {
    /// Lines of a series: a star for each interval, between the least and the greatest value.
    pub(super) fn series(&self, series: &Series) -> String {
        let points: Vec<(u64, i64)> = series.values().collect();
        let order = |value: i64| match series.signed {
            true => i128::from(value),
            false => i128::from(value.cast_unsigned()),
        };
        let values = || points.iter().map(|(_, value)| *value);
        let (Some(least), Some(most)) =
            (values().min_by_key(|it| order(*it)), values().max_by_key(|it| order(*it)))
        else {
            return String::new();
        };
        let (low, high) = (order(least), order(most));
        let last = i128::try_from(WIDTH - 1).unwrap_or(0);
        let column = |value: i128| {
            let at = (value - low) * last / (high - low).max(1);
            usize::try_from(at).unwrap_or(0).min(WIDTH - 1)
        };
        let blank = " ".repeat(TIME_WIDTH);
        let (least, most) = (number(least, series.signed), number(most, series.signed));
        let scale = format!("{blank}{least:<width$}{most}\n", width = WIDTH - 1);
        let border = |mark: char| format!("{mark}{}{mark}\n", "_".repeat(WIDTH - 2));
        let mut text = format!("{scale}hh:mm:ss.ms  {}", border('|'));
        for (time, value) in &points {
            let mut row = vec![' '; WIDTH];
            (row[0], row[WIDTH - 1]) = ('|', '|');
            if low < 0 && high > 0 {
                row[column(0)] = '.';
            }
            row[column(order(*value))] = '*';
            let row: String = row.into_iter().collect();
            let clock = self.time(*time, "%H:%M:%S%.3f");
            text += &format!("{clock} {row} {}\n", number(*value, series.signed));
        }
        text + &format!("{blank}{}{scale}", border('v'))
    }
}
