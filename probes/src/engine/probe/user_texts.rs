//! Users' texts that filters compare (`NAME.ustring`), in records.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::definition::{Argument, Fetch, Field, Filter, ValueType};
use crate::seldom::Seldom;

/// The users' texts that a probe's records may have after their other values: so filters over them
/// can be evaluated when records are read.
#[derive(Default)]
pub(crate) struct UserTexts {
    /// The arguments that are their addresses. Others may be added after these, and none is
    /// removed: so records of before are still understood.
    places: ArcSwap<Vec<usize>>,
    /// The texts as arguments, while each hit that exits records them.
    recorded: Seldom<Vec<Argument>>,
}

impl UserTexts {
    /// The arguments that are their addresses, in the order of records.
    pub(crate) fn places(&self) -> Arc<Vec<usize>> {
        self.places.load_full()
    }

    /// The texts as arguments, if each hit that exits records them.
    pub(crate) fn recorded(&self) -> Option<Arc<Vec<Argument>>> {
        self.recorded.load()
    }

    /// The texts as arguments, by the probe's own.
    pub(crate) fn arguments(&self, list: &[Argument]) -> Vec<Argument> {
        self.places().iter().map(|index| text_of(list.get(*index))).collect()
    }

    /// Adds the texts that filters compare, by the probe's arguments. Hits that exit record all of
    /// them from now on if they are to be `recorded` and some filter compares one.
    pub(crate) fn renew(&self, list: &[Argument], compared: &BTreeSet<usize>, recorded: bool) {
        let mut places = self.places();
        if compared.iter().any(|index| !places.contains(index)) {
            let new: Vec<_> =
                compared.iter().filter(|index| !places.contains(index)).copied().collect();
            places = Arc::new([&places[..], &new].concat());
            self.places.store(places);
        }
        let is_recorded = recorded && !compared.is_empty();
        self.recorded.store(is_recorded.then(|| Arc::new(self.arguments(list))));
    }
}

/// The user's text that an argument is the address of; without an argument no text can be read.
fn text_of(address: Option<&Argument>) -> Argument {
    let base = address.map_or(Fetch::Constant(0), |arg| arg.fetch.clone());
    Argument {
        name: String::new(),
        fetch: Fetch::Deref { offset: 0, base: Box::new(base), user: true },
        kind: ValueType::UserText,
        count: None,
    }
}

/// The arguments that are addresses of users' texts which a filter compares.
pub(crate) fn compared(filter: &Filter<Field>) -> BTreeSet<usize> {
    let found = RefCell::new(BTreeSet::new());
    let _ = filter.asks_for(&|field| {
        if let Field::UserText { index } = field {
            found.borrow_mut().insert(index);
        }
        false
    });
    found.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::{Register, TextTest};

    fn list() -> Vec<Argument> {
        let arg = |register| Argument {
            name: "a".to_owned(),
            fetch: Fetch::Register(register),
            kind: ValueType::default(),
            count: None,
        };
        [Register::Di, Register::Si, Register::Dx].map(arg).into()
    }

    fn bases(texts: &[Argument]) -> Vec<Fetch> {
        let base = |arg: &Argument| match &arg.fetch {
            Fetch::Deref { offset: 0, base, user: true } => (**base).clone(),
            other => panic!("{other:?}"),
        };
        texts.iter().map(base).collect()
    }

    #[test]
    fn texts_keep_their_places_in_records() {
        let (texts, list) = (UserTexts::default(), list());
        let renew =
            |compared: &[usize], on| texts.renew(&list, &compared.iter().copied().collect(), on);
        renew(&[], true);
        assert!(texts.recorded().is_none() && texts.places().is_empty());
        renew(&[2], false);
        assert!(texts.recorded().is_none(), "its filter is evaluated in hits");
        renew(&[0, 2], true);
        assert_eq!(**texts.places(), [2, 0]);
        let [dx, di] = [Register::Dx, Register::Di].map(Fetch::Register);
        assert_eq!(bases(&texts.recorded().unwrap()), [dx, di.clone()]);
        renew(&[], true);
        assert!(texts.recorded().is_none(), "no filter compares any");
        renew(&[1], true);
        assert_eq!(**texts.places(), [2, 0, 1]);
        assert_eq!(
            bases(&texts.arguments(&list[..1])),
            [Fetch::Constant(0), di, Fetch::Constant(0)]
        );
    }

    #[test]
    fn a_filter_compares_the_texts_of_these_arguments() {
        let test = || TextTest { glob: false, not: false, text: "x".to_owned() };
        let user = |index| Filter::Match { field: Field::UserText { index }, test: test() };
        let own = Filter::Match { field: Field::Text { index: 1 }, test: test() };
        let all = Filter::Any(vec![user(5), Filter::Not(Box::new(user(2))), user(5), own]);
        assert_eq!(compared(&all), BTreeSet::from([2, 5]));
    }
}
