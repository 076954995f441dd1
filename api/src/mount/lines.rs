//! Writes that the kernel took apart.

use fuser::LockOwner;

/// Longest write that the kernel hands over at once, in bytes. So short that the pages of one fit
/// into a request wherever they begin: then the kernel takes a longer write apart at exactly this.
pub(super) const WRITE_MAX: usize = 64 << 10;
/// Longest unfinished line that is kept, in bytes. The tracer takes lines of 4 KiB.
const LINE_MAX: usize = 64 << 10;

/// A line that is longer than any can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LineTooLong;

/// Keeps the unfinished last line of a write that may go on in the next.
#[derive(Debug, Default)]
pub(super) struct LineKeeper {
    kept: Vec<u8>,
    /// Owner of the descriptors that wrote it, where known.
    writer: Option<LockOwner>,
    /// The write that was to finish the line failed.
    failed: bool,
}

/// Outcome of a write.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Portion {
    /// To be sent now; may be empty.
    pub(super) send: Vec<u8>,
    /// To be kept once that is done.
    keep: Vec<u8>,
}

impl LineKeeper {
    /// Puts what was kept in front of `data`. Of a write of [`WRITE_MAX`] bytes, which the kernel
    /// may have cut, the unfinished last line is kept back.
    pub(super) fn portion(
        &mut self,
        data: &[u8],
        writer: Option<LockOwner>,
    ) -> Result<Portion, LineTooLong> {
        self.writer = writer;
        let mut send = [&self.kept, data].concat();
        if data.len() < WRITE_MAX {
            return Ok(Portion { send, keep: Vec::new() });
        }
        let whole = send.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let keep = send.split_off(whole);
        if keep.len() > LINE_MAX {
            self.failed = true;
            return Err(LineTooLong);
        }
        Ok(Portion { send, keep })
    }

    /// The portion was sent.
    pub(super) fn sent(&mut self, portion: Portion) {
        (self.kept, self.failed) = (portion.keep, false);
    }

    /// The portion was refused. Its write ended where the line was cut, and
    /// may try again from there, so the line's beginning stays; but it is not sent alone.
    pub(super) fn refused(&mut self) {
        self.failed = true;
    }

    /// Takes the rest when `closer` closes the file, or all have (`None`), and no write will finish
    /// it. Nothing when it was another that wrote: a process that was forked in the middle of a
    /// write closes the file, too.
    pub(super) fn rest(&mut self, closer: Option<LockOwner>) -> Vec<u8> {
        if closer.is_some() && self.writer.is_some() && closer != self.writer {
            return Vec::new();
        }
        let Self { kept, failed, .. } = std::mem::take(self);
        if failed { Vec::new() } else { kept }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Option<LockOwner> = Some(LockOwner(7));

    /// As much as the kernel hands over at once, ending in `end`.
    fn full(end: &str) -> Vec<u8> {
        let mut data = vec![b'#'; WRITE_MAX - end.len()];
        data.extend_from_slice(end.as_bytes());
        data
    }

    fn write(lines: &mut LineKeeper, data: &[u8]) -> Vec<u8> {
        let portion = lines.portion(data, OWN).unwrap();
        let send = portion.send.clone();
        lines.sent(portion);
        send
    }

    #[test]
    fn a_short_write_goes_as_it_is() {
        let mut lines = LineKeeper::default();
        assert_eq!(write(&mut lines, b"p:a f\np:b"), b"p:a f\np:b");
        assert_eq!(write(&mut lines, b"1"), b"1");
        assert!(lines.rest(OWN).is_empty());
    }

    #[test]
    fn a_line_that_the_kernel_cut_is_sent_whole() {
        let mut lines = LineKeeper::default();
        assert_eq!(write(&mut lines, &full("\np:a do_")), full("\np:a do_")[..WRITE_MAX - 7]);
        let second = write(&mut lines, &full("\nr:b"));
        assert!(second.starts_with(b"p:a do_###") && second.ends_with(b"#\n"));
        assert_eq!(write(&mut lines, b" f\n"), b"r:b f\n");
        assert!(write(&mut lines, &full("\n")).ends_with(b"#\n"), "nothing is cut");
        assert!(lines.rest(OWN).is_empty());
    }

    #[test]
    fn what_no_write_finished_is_left_for_the_end() {
        let mut lines = LineKeeper::default();
        write(&mut lines, &full("\np:a f"));
        assert_eq!(lines.rest(OWN), b"p:a f");
        assert!(lines.rest(OWN).is_empty(), "once");
    }

    #[test]
    fn who_did_not_write_leaves_the_line_to_who_does() {
        let mut lines = LineKeeper::default();
        write(&mut lines, &full("\np:a do_"));
        assert!(lines.rest(Some(LockOwner(8))).is_empty());
        assert_eq!(write(&mut lines, b"fork\n"), b"p:a do_fork\n");
        write(&mut lines, &full("\np:a f"));
        assert_eq!(lines.rest(None), b"p:a f", "when all have closed it");
    }

    #[test]
    fn a_refused_line_may_be_tried_again_and_is_never_sent_in_part() {
        let mut lines = LineKeeper::default();
        write(&mut lines, &full("\np:a do_"));
        assert_eq!(lines.portion(b"nothing\n", OWN).unwrap().send, b"p:a do_nothing\n");
        lines.refused();
        assert_eq!(lines.portion(b"fork\n", OWN).unwrap().send, b"p:a do_fork\n");
        assert!(lines.rest(OWN).is_empty());
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut lines = LineKeeper::default();
        assert!(write(&mut lines, &full("x")).is_empty());
        assert_eq!(lines.portion(&full("x"), OWN), Err(LineTooLong));
        assert!(lines.rest(OWN).is_empty());
    }
}
