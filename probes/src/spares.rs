//! Spare values, so that a hit seldom allocates.

use crossbeam_utils::atomic::AtomicCell;

/// Room for some spare values. No thread waits for another.
pub(crate) struct Spares<T>(Box<[AtomicCell<Option<Box<T>>>]>);

impl<T> Spares<T> {
    /// Room for `most`, without any.
    pub(crate) fn new(most: usize) -> Self {
        Self((0..most).map(|_| AtomicCell::new(None)).collect())
    }

    /// Takes one, if there is any.
    pub(crate) fn take(&self) -> Option<Box<T>> {
        self.0.iter().find_map(AtomicCell::take)
    }

    /// Adds one. Frees it, or another, if there is no room.
    pub(crate) fn give(&self, value: Box<T>) {
        let mut given = Some(value);
        for place in &self.0 {
            given = place.swap(given);
            if given.is_none() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_spare_as_there_is_room_for() {
        let spares = Spares::new(2);
        assert!(spares.take().is_none());
        (0..3).for_each(|number| spares.give(Box::new(number)));
        let mut found = [spares.take(), spares.take()].map(|one| *one.expect("two are there"));
        found.sort_unstable();
        assert!(found == [0, 1] || found == [0, 2] || found == [1, 2], "{found:?}");
        assert!(spares.take().is_none());
    }
}
