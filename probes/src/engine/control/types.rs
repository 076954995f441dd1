//! The kernel's types: the given ones, or its own.

use exoprobe_introspect::btf::NoTypes;

use crate::definition::ProbeDefinition;
use crate::engine::arguments::finder::ResolveContext;
use crate::engine::arguments::list::Arguments;
use crate::engine::arguments::rewrite;
use crate::engine::control::place::Place;
use crate::engine::control::state::Control;
use crate::engine::kernel::running::Kernel;
use crate::engine::probe::registered::Probe;
use crate::error::ProbeError;

impl Control {
    /// Rewrites a definition's arguments as the tracer lists them, if the kernel and its types are
    /// known by now.
    pub(crate) fn rewrite(&mut self, definition: &mut ProbeDefinition) -> Result<(), ProbeError> {
        let Some(kernel) = self.kernel.running.clone().filter(|_| rewrite::is_due(definition))
        else {
            return Ok(());
        };
        // A fault of its place, or missing types, are reported when the place is found.
        let Ok((place, None)) = self.find_place(definition) else { return Ok(()) };
        let Ok(types) = self.kernel.types(&kernel) else { return Ok(()) };
        rewrite::rewrite(definition, place.function(), &types)
    }

    /// Resolves the arguments of a probe at its present place: a kernel that is booted again has
    /// its symbols elsewhere (KASLR).
    pub(crate) fn learn_arguments(
        &mut self,
        kernel: &Kernel,
        probe: &Probe,
        place: &Place,
    ) -> Result<(), ProbeError> {
        let definition = &probe.definition;
        let types = match Arguments::ask_for_types(definition) {
            true => self.kernel.types(kernel),
            false => Err(NoTypes::None),
        };
        let ground = ResolveContext { symbols: &kernel.symbols, function: place.function(), types };
        let arguments = Arguments::find(definition, &ground)?;
        let written = probe.event_filter.written();
        let filter =
            arguments.filter(Some(definition.kind), written.as_deref(), Some(&kernel.symbols))?;
        probe.set_arguments(arguments, filter);
        Ok(())
    }
}
