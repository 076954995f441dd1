//! Pages of the kernel's ring buffer, as `trace_pipe_raw` has them: a header of time and length,
//! and entries with the time since the one before (ring-buffer-design.rst, `events/header_page`,
//! `events/header_event`), on a 64-bit guest.

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;
/// Its header: the time of its first entry, and the bytes of entries with flags.
const HEADER: usize = 16;
/// The most bytes of data that one entry has: on a page of its own, with the header of a large
/// entry, and the number of lost entries after it.
pub(crate) const DATA_MAX: usize = PAGE - HEADER - 2 * WORD - LOST;

const WORD: usize = 4;
/// Bytes of the number of lost entries.
const LOST: usize = 8;
/// Flag of a page: entries before it are lost.
const MISSED: u64 = 1 << 31;
/// Flag of a page: their number comes after its entries.
const MISSED_STORED: u64 = 1 << 30;
/// Words of data that an entry's header has room for; others have a word with their length.
const SMALL_MAX: usize = 28;
/// Type of an entry that is time alone.
const TIME_EXTEND: u32 = 30;
const TYPE_BITS: u32 = 5;
const DELTA_BITS: u32 = 27;
/// Most time that such an entry holds.
const EXTEND_MAX: u64 = (1 << (DELTA_BITS + 32)) - 1;

/// Writes entries into pages, `max` at most.
#[derive(Clone, Debug)]
pub(crate) struct PageWriter {
    done: Vec<u8>,
    max: usize,
    page: Option<Page>,
    /// Lost entries that no page has.
    lost: u64,
}

/// A page that is being filled.
#[derive(Clone, Debug)]
struct Page {
    began: u64,
    /// Time of the last entry.
    last: u64,
    data: Vec<u8>,
    lost: u64,
}

impl PageWriter {
    pub(crate) fn new(max: usize) -> Self {
        Self { done: Vec::new(), max, page: None, lost: 0 }
    }

    /// Notes that entries before the next one are lost.
    pub(crate) fn lose(&mut self, lost: u64) {
        self.lost += lost;
    }

    /// Appends entries of one time, all or none. Returns false if the pages have no room for them.
    ///
    /// # Panics
    /// When an entry is longer than [`DATA_MAX`].
    pub(crate) fn add(&mut self, time: u64, entries: &[Vec<u8>]) -> bool {
        if let [entry] = entries {
            return self.add_one(time, entry);
        }
        let mut with = self.clone_open();
        if !entries.iter().all(|entry| with.add_one(time, entry)) {
            return false;
        }
        self.done.append(&mut with.done);
        (self.page, self.lost) = (with.page, with.lost);
        true
    }

    /// A writer that goes on where this one is, with pages of its own.
    fn clone_open(&self) -> Self {
        let max = self.max - self.done.len() / PAGE;
        Self { done: Vec::new(), max, page: self.page.clone(), lost: self.lost }
    }

    fn add_one(&mut self, time: u64, data: &[u8]) -> bool {
        assert!(data.len() <= DATA_MAX, "no page has room for {} bytes", data.len());
        if let Some(page) = self.page.as_mut().filter(|_| self.lost == 0)
            && page.add(time, data)
        {
            return true;
        }
        self.finish_page();
        if self.done.len() == self.max * PAGE {
            return false;
        }
        let lost = std::mem::take(&mut self.lost);
        let mut page = Page { began: time, last: time, data: Vec::new(), lost };
        assert!(page.add(time, data), "an empty page has room");
        self.page = Some(page);
        true
    }

    fn finish_page(&mut self) {
        if let Some(page) = self.page.take() {
            page.finish(&mut self.done);
        }
    }

    /// The pages, each with its length; none if there is no entry.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.finish_page();
        self.done
    }
}

impl Page {
    /// Appends an entry, if the page has room for it, and it is not before the last one.
    fn add(&mut self, time: u64, data: &[u8]) -> bool {
        let Some(delta) = time.checked_sub(self.last).filter(|delta| *delta <= EXTEND_MAX) else {
            return false;
        };
        let low = |delta: u64| u32::try_from(delta & ((1 << DELTA_BITS) - 1)).expect("27 bits");
        let (mut entry, mut delta) = (Vec::new(), delta);
        if delta >> DELTA_BITS != 0 {
            let high = u32::try_from(delta >> DELTA_BITS).expect("at most EXTEND_MAX");
            put(&mut entry, TIME_EXTEND | low(delta) << TYPE_BITS);
            put(&mut entry, high);
            delta = 0;
        }
        let words = data.len().div_ceil(WORD);
        let small = u32::try_from(words).ok().filter(|_| (1..=SMALL_MAX).contains(&words));
        put(&mut entry, small.unwrap_or(0) | low(delta) << TYPE_BITS);
        if small.is_none() {
            put(&mut entry, u32::try_from((words + 1) * WORD).expect("at most a page"));
        }
        entry.extend_from_slice(data);
        entry.resize(entry.len().next_multiple_of(WORD), 0);
        let reserved = if self.lost > 0 { LOST } else { 0 };
        if self.data.len() + entry.len() + reserved > PAGE - HEADER {
            return false;
        }
        self.data.append(&mut entry);
        self.last = time;
        true
    }

    fn finish(self, pages: &mut Vec<u8>) {
        let begin = pages.len();
        let flags = if self.lost > 0 { MISSED | MISSED_STORED } else { 0 };
        pages.extend_from_slice(&self.began.to_le_bytes());
        pages.extend_from_slice(&(self.data.len() as u64 | flags).to_le_bytes());
        pages.extend_from_slice(&self.data);
        if self.lost > 0 {
            pages.extend_from_slice(&self.lost.to_le_bytes());
        }
        pages.resize(begin + PAGE, 0);
    }
}

fn put(to: &mut Vec<u8>, word: u32) {
    to.extend_from_slice(&word.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A page's entries with their times, and the number that was lost before them, read as the
    /// kernel's description says.
    fn read(page: &[u8]) -> (u64, Vec<(u64, Vec<u8>)>) {
        let long = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().unwrap());
        let word = |at: usize| u32::from_le_bytes(page[at..at + 4].try_into().unwrap());
        let (mut time, commit) = (long(0), long(8));
        let length = usize::try_from(commit & 0xf_ffff).unwrap();
        let (mut at, end, mut entries) = (HEADER, HEADER + length, Vec::new());
        while at < end {
            let head = word(at);
            let delta = u64::from(head >> TYPE_BITS);
            at += 4;
            match head & 31 {
                30 => {
                    time += delta | u64::from(word(at)) << DELTA_BITS;
                    at += 4;
                    continue;
                }
                0 => {
                    let length = word(at) as usize - 4;
                    entries.push((time + delta, page[at + 4..at + 4 + length].to_vec()));
                    at += 4 + length;
                }
                words @ 1..=28 => {
                    let length = words as usize * 4;
                    entries.push((time + delta, page[at..at + length].to_vec()));
                    at += length;
                }
                other => panic!("no entry is of type {other}"),
            }
            time += delta;
        }
        assert_eq!(at, end);
        let lost = match commit & MISSED {
            0 => 0,
            _ => {
                assert_ne!(commit & MISSED_STORED, 0);
                long(end)
            }
        };
        (lost, entries)
    }

    fn padded(data: &[u8]) -> Vec<u8> {
        let mut data = data.to_vec();
        data.resize(data.len().next_multiple_of(WORD), 0);
        data
    }

    /// Times that go on a little, much, or back; data of all lengths; lost entries.
    fn entry() -> impl Strategy<Value = (i64, Vec<u8>, u64)> {
        let step = prop_oneof![
            4 => 0..1000_i64,
            2 => (1 << 26)..(1_i64 << 29),
            1 => (1_i64 << 58)..(1_i64 << 61),
            1 => -1_000_000..0_i64,
        ];
        let length = prop_oneof![8 => 0..200_usize, 1 => 0..=DATA_MAX];
        let data = length.prop_flat_map(|length| prop::collection::vec(any::<u8>(), length));
        (step, data, prop_oneof![9 => Just(0), 1 => 1..1000_u64])
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(entries in prop::collection::vec(entry(), 0..200)) {
            let mut writer = PageWriter::new(1000);
            let (mut time, mut expected, mut all_lost) = (1_u64 << 40, Vec::new(), 0);
            for (step, data, lost) in entries {
                time = time.saturating_add_signed(step) & (u64::MAX >> 1);
                writer.lose(lost);
                all_lost += lost;
                prop_assert!(writer.add(time, std::slice::from_ref(&data)));
                expected.push((time, padded(&data)));
            }
            let pages = writer.finish();
            prop_assert_eq!(pages.len() % PAGE, 0);
            let (mut found, mut found_lost) = (Vec::new(), 0);
            for page in pages.chunks(PAGE) {
                let (lost, entries) = read(page);
                prop_assert!(!entries.is_empty());
                found.extend(entries);
                found_lost += lost;
            }
            prop_assert_eq!(found, expected);
            prop_assert_eq!(found_lost, all_lost);
        }

        #[test]
        fn pages_take_no_more_than_they_hold_and_entries_of_one_time_stay_together(
            max in 1..4_usize, sizes in prop::collection::vec((0..600_usize, 0..600_usize), 1..60),
        ) {
            let mut writer = PageWriter::new(max);
            let (mut expected, mut is_full) = (Vec::new(), false);
            for (time, (one, other)) in (0..).zip(sizes) {
                let entries = [vec![1; one], vec![2; other]];
                is_full = !writer.add(time, &entries);
                if is_full {
                    break;
                }
                expected.extend(entries.map(|entry| (time, padded(&entry))));
            }
            let pages = writer.finish();
            prop_assert!(pages.len() <= max * PAGE);
            prop_assert!(!is_full || pages.len() == max * PAGE || max == 1);
            let found: Vec<_> = pages.chunks(PAGE).flat_map(|page| read(page).1).collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn an_entry_is_laid_out_as_the_kernel_describes() {
        let mut writer = PageWriter::new(1);
        assert!(writer.add(1000, &[vec![7; 6]]));
        assert!(writer.add(1003, &[vec![8; 120]]));
        assert!(writer.add(1003 + (5 << 27) + 9, &[vec![9; 4]]));
        let page = writer.finish();
        let words: Vec<u32> =
            page.chunks(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect();
        assert_eq!(words[..4], [1000, 0, 12 + 128 + 16, 0]);
        assert_eq!(words[4..7], [2, 0x0707_0707, 0x0707]);
        assert_eq!(words[7..9], [3 << 5, 124]);
        assert_eq!(words[39..43], [30 | 9 << 5, 5, 1, 0x0909_0909]);
        assert!(words[43..].iter().all(|word| *word == 0));
    }
}
