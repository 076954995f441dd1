//! Lists of CPUs in filters: `CPUS{0,2-3}`.

use std::collections::BTreeSet;

use super::filter::{Comparison, Filter};

/// A list of CPUs.
pub(super) struct Cpus {
    /// First and last of each range, with others between two ranges.
    ranges: Vec<(u8, u8)>,
    /// The last CPU that exists.
    last: u8,
}

impl Cpus {
    /// Parses numbers, ranges and `all`, between commas or blanks. `N` is the last CPU. Returns
    /// `None` if a number is beyond it.
    pub(super) fn parse(list: &str, last: u8) -> Option<Self> {
        let number = |text: &str| match text {
            "N" => Some(last),
            _ if !text.bytes().all(|byte| byte.is_ascii_digit()) => None,
            _ => text.parse().ok().filter(|cpu| *cpu <= last),
        };
        let is_end = |c: char| c == ',' || c.is_ascii_whitespace();
        let mut listed = BTreeSet::new();
        for region in list.split(is_end).filter(|region| !region.is_empty()) {
            let (first, last) = match region.split_once('-') {
                None if region.eq_ignore_ascii_case("all") => (0, last),
                None => (number(region)?, number(region)?),
                Some((first, last)) => (number(first)?, number(last)?),
            };
            (first <= last).then(|| listed.extend(first..=last))?;
        }
        let mut ranges: Vec<(u8, u8)> = Vec::new();
        for cpu in listed {
            match ranges.last_mut() {
                Some((_, end)) if *end + 1 == cpu => *end = cpu,
                _ => ranges.push((cpu, cpu)),
            }
        }
        Some(Self { ranges, last })
    }

    /// Compares a field with the list. A number is never equal to a list of several.
    pub(super) fn filter(&self, field: &str, comparison: Comparison) -> Filter {
        let test = |comparison, operand: u8| Filter::Test {
            field: field.to_owned(),
            comparison,
            operand: operand.into(),
        };
        let within = |(first, last): (u8, u8)| match first == last {
            true => test(Comparison::Equal, first),
            false => {
                Filter::All(vec![test(Comparison::AtLeast, first), test(Comparison::AtMost, last)])
            }
        };
        match (comparison, self.ranges.as_slice()) {
            (Comparison::NotEqual, [(one, last)]) if one == last => {
                test(Comparison::NotEqual, *one)
            }
            // In the kernel, too, numbers that are no CPU are in no relation to a list.
            (Comparison::NotEqual, _) => within((0, self.last)),
            (Comparison::Equal, [(one, last)]) if one == last => within((*one, *one)),
            (Comparison::AnyBit, [one]) => within(*one),
            (Comparison::AnyBit, several @ [_, ..]) => {
                Filter::Any(several.iter().copied().map(within).collect())
            }
            _ => test(Comparison::AnyBit, 0),
        }
    }

    /// The most comparisons of its filter.
    pub(super) fn tests(&self) -> usize {
        2 * self.ranges.len().max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(list: &str, comparison: Comparison) -> Option<String> {
        Some(Cpus::parse(list, 7)?.filter("CPU", comparison).to_string())
    }

    #[test]
    fn lists_are_those_of_the_kernel() {
        for (list, shown_as) in [
            ("3", "CPU == 0x3"),
            ("0,2-4", "CPU == 0x0 || CPU >= 0x2 && CPU <= 0x4"),
            (" 1 ,,2\t2", "CPU >= 0x1 && CPU <= 0x2"),
            ("all", "CPU >= 0x0 && CPU <= 0x7"),
            ("5-N", "CPU >= 0x5 && CPU <= 0x7"),
            (",", "CPU & 0x0"),
        ] {
            assert_eq!(shown(list, Comparison::AnyBit).as_deref(), Some(shown_as), "{list}");
        }
        for list in ["x", "8", "3-2", "1-", "-1", "+1", "0-99999", "1:1/2", "1-2-3"] {
            assert_eq!(shown(list, Comparison::AnyBit), None, "{list}");
        }
    }

    #[test]
    fn a_number_equals_a_list_of_one_alone() {
        let equal = |list| shown(list, Comparison::Equal).unwrap();
        assert_eq!((equal("3"), equal("3-4")), ("CPU == 0x3".into(), "CPU & 0x0".into()));
        let differs = |list| shown(list, Comparison::NotEqual).unwrap();
        let any = "CPU >= 0x0 && CPU <= 0x7";
        assert_eq!((differs("3"), differs("3-4")), ("CPU != 0x3".into(), any.into()));
    }
}
