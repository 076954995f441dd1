//! The kernel's types: those that were given, or its own.

use std::sync::Arc;

use exoprobe_introspect::Btf;
use exoprobe_introspect::btf::NoTypes;

use crate::definition::ProbeDefinition;
use crate::engine::arguments::finder::Ground;
use crate::engine::arguments::list::Arguments;
use crate::engine::arguments::rewrite;
use crate::engine::control::place::Place;
use crate::engine::control::registry::Registry;
use crate::engine::hit::path::HitPath;
use crate::engine::kernel::running::Kernel;
use crate::engine::probe::registered::Probe;
use crate::error::ProbeError;

impl HitPath {
    pub(crate) fn types(
        &self,
        registry: &mut Registry,
        kernel: &Kernel,
    ) -> Result<Arc<Btf>, NoTypes> {
        if let Some(types) = self.types.as_ref().or(registry.own_types.as_ref()) {
            return Ok(Arc::clone(types));
        }
        let found = match Btf::read(&kernel.memory(), &kernel.symbols) {
            Ok(own) => {
                tracing::info!(types = own.len(), "types from the guest's memory");
                Arc::new(own)
            }
            Err(NoTypes::None) => self.found_types(registry, kernel).ok_or(NoTypes::None)?,
            Err(error) => return Err(error),
        };
        Ok(Arc::clone(registry.own_types.insert(found)))
    }

    /// The types that were found near the kernel's file, if they can be those of the kernel that
    /// runs.
    fn found_types(&self, registry: &mut Registry, kernel: &Kernel) -> Option<Arc<Btf>> {
        let found = self.found_types.as_ref().filter(|_| !registry.found_foreign)?;
        let file = found.file.display();
        if let Err(reason) = found.types.check_kernel(&kernel.symbols) {
            registry.found_foreign = true;
            tracing::warn!(
                "{file} is not used: {reason}; give this kernel's types with --btf FILE"
            );
            return None;
        }
        tracing::info!(types = found.types.len(), "types from {file}");
        Some(Arc::clone(&found.types))
    }

    /// Has a definition's arguments as the tracer lists them, where the kernel and its types are known by now.
    pub(crate) fn rewrite(
        &self,
        registry: &mut Registry,
        definition: &mut ProbeDefinition,
    ) -> Result<(), ProbeError> {
        let Some(kernel) = registry.kernel.clone().filter(|_| rewrite::is_due(definition)) else {
            return Ok(());
        };
        // What is wrong with its place, or that there are no types, is told when it is found.
        let Ok((place, None)) = self.find_place(registry, definition) else { return Ok(()) };
        let Ok(types) = self.types(registry, &kernel) else { return Ok(()) };
        rewrite::rewrite(definition, place.function(), &types)
    }

    /// Finds out what hits of a probe fetch, where it is now: a kernel that is booted again has its symbols elsewhere
    /// (KASLR).
    pub(crate) fn learn_arguments(
        &self,
        registry: &mut Registry,
        kernel: &Kernel,
        probe: &Probe,
        place: &Place,
    ) -> Result<(), ProbeError> {
        let definition = &probe.definition;
        let types = match Arguments::ask_for_types(definition) {
            true => self.types(registry, kernel),
            false => Err(NoTypes::None),
        };
        let ground = Ground { symbols: &kernel.symbols, function: place.function(), types };
        let arguments = Arguments::find(definition, &ground)?;
        let filter = arguments.filter(probe.written_filter().as_deref())?;
        probe.set_arguments(arguments, filter);
        Ok(())
    }
}
