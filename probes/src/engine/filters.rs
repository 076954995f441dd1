//! Filters that change while their probes are registered.

use super::Engine;
use super::arguments::Arguments;
use crate::definition::Filter;
use crate::error::ProbeError;

impl Engine {
    /// Has other hits of a probe count from now on: those that the filter lets through, or, without one, all. Its books
    /// go on.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`]; [`ProbeError::Filter`], with the filter of before still there.
    pub fn set_filter(
        &self,
        group: &str,
        event: &str,
        filter: Option<Filter>,
    ) -> Result<(), ProbeError> {
        let mut registry = self.lock();
        let id = registry.id(group, event)?;
        let (probe, place) = {
            let found = &registry.probes[&id];
            (std::sync::Arc::clone(&found.probe), found.placed())
        };
        let found = match probe.has_arguments() {
            true => probe.arguments().filter(filter.as_ref())?,
            false => {
                Arguments::check(&probe.definition, filter.as_ref())?;
                None
            }
        };
        // A detour has the filter in its code: the next one gets the new one.
        self.path.unoptimize(&mut registry, self.guest.as_ref(), place.iter());
        registry.optimizer.changed = true;
        probe.set_filter(filter, found);
        Ok(())
    }
}
