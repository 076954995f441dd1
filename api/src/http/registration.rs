//! From the definitions of a request to probes, or to a check of them.

use exoprobe_probes::{
    Batch, BatchError, Engine, Expansion, ProbeDefinition, ProbeStatus, Registration, Selection,
};
use serde::Deserialize;
use utoipa::IntoParams;

use super::definitions::Definitions;
use super::problem::Problem;
use super::wire::{ProbeReport, RefusedProbe, Registered};

/// How definitions are taken.
#[derive(Clone, Copy, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct RegistrationQuery {
    /// Check the definitions and register none.
    #[serde(default)]
    pub(super) dry_run: bool,
    /// Probes of patterns are not left out either: all or none.
    #[serde(default)]
    all_or_none: bool,
    /// Most functions that one pattern may match; any number when absent.
    max: Option<usize>,
}

/// Registers definitions: all or none, but for probes of patterns, which are left out if they are
/// refused.
pub(super) fn register(
    engine: &Engine,
    definitions: Definitions,
    query: RegistrationQuery,
) -> Result<Registered, Problem> {
    let is_one = matches!(definitions, Definitions::One(_));
    let (numbers, definitions) = definitions.into_parts();
    let registered = register_all(engine, definitions, query).map_err(|mut problem| {
        if is_one {
            problem.index = None;
        }
        let line = problem.index.and_then(|index| numbers.get(index).copied());
        match line {
            Some(line) => problem.at_line(line),
            None => problem,
        }
    })?;
    match registered {
        Registered::Many(mut probes) if is_one => {
            let gone = || Problem::new("ENOENT", "the probe was deleted meanwhile");
            Ok(Registered::One(Box::new(probes.pop().ok_or_else(gone)?)))
        }
        registered => Ok(registered),
    }
}

fn register_all(
    engine: &Engine,
    definitions: Vec<ProbeDefinition>,
    query: RegistrationQuery,
) -> Result<Registered, Problem> {
    let has_patterns = definitions.iter().any(ProbeDefinition::is_pattern);
    let expansion = engine.expand(definitions, query.max.unwrap_or(usize::MAX))?;
    let places = Places::of(&expansion);
    let batch = match query.all_or_none {
        true => expansion.all_or_none(),
        false => Batch::from(expansion),
    };
    let refused = |error| places.problem(error);
    let (probes, refused) = match query.dry_run {
        true => {
            let rehearsal = engine.rehearse(batch).map_err(refused)?;
            (rehearsal.accepted, rehearsal.refused)
        }
        false => {
            let admission = engine.admit(batch).map_err(refused)?;
            (statuses(engine, &admission.registered), admission.refused)
        }
    };
    if !has_patterns && !query.dry_run {
        return Ok(Registered::Many(probes));
    }
    let refused = refused.iter().map(|one| places.refused(one)).collect();
    Ok(Registered::Report(ProbeReport { probes, refused }))
}

/// Probes that were just registered; one may be deleted meanwhile.
fn statuses(engine: &Engine, registered: &[Registration]) -> Vec<ProbeStatus> {
    engine.list_of(Selection::from(registered)).unwrap_or_default()
}

/// The places of an expansion, each with the index of its definition.
struct Places(Vec<(usize, String)>);

impl Places {
    fn of(expansion: &Expansion) -> Self {
        let all = expansion.definitions.iter();
        Self(all.map(|one| (one.source, one.definition.place())).collect())
    }

    fn problem(&self, error: BatchError) -> Problem {
        let source = self.0.get(error.index).map(|(source, _)| *source);
        let mut problem = Problem::from(error);
        problem.index = problem.index.and(source);
        problem
    }

    fn refused(&self, error: &BatchError) -> RefusedProbe {
        let (source, place) = &self.0[error.index];
        RefusedProbe::new(*source, place.clone(), &error.error)
    }
}
