//! The checker: types, names, and what each body must read at a hit. Nothing of the guest is
//! changed before all of a script is right.

mod aggregate;
mod body;
mod builtin;
mod call;
mod checker;
mod common;
mod constants;
mod convert;
mod expr;
mod format;
mod function;
mod macros;
mod map_types;
mod maps;
mod member;
mod operand;
mod output;
mod own_types;
mod place;
mod points;
mod prune;
mod settings;
mod state;
mod statement;
mod types;

use std::sync::Arc;

use crate::diagnostic::Diagnostics;
use crate::kernel::Kernel;
use crate::program::{Attachment, Body, Program};
use crate::syntax::Script;
use crate::syntax::ast::Action;
use checker::Checker;
use map_types::Maps;
use own_types::OwnTypes;
use place::{Place, Point, Points};
use state::BodyState;

pub use checker::Options;

/// Most passes to infer the types of maps: each adds a type at least.
const PASSES_MAX: usize = 24;
/// Most errors that are reported.
const ERRORS_MAX: usize = 20;

/// Checks a script against a kernel.
///
/// # Errors
///
/// All errors with their places; at most 20.
pub fn check(
    script: &Script,
    kernel: &dyn Kernel,
    options: &Options,
) -> Result<Program, Diagnostics> {
    let mut checker = Checker {
        script,
        kernel,
        options: *options,
        own: OwnTypes::default(),
        maps: Maps::default(),
        errors: Vec::new(),
        missing: Vec::new(),
        points: 0,
        is_last_pass: false,
        body: BodyState::default(),
        map_entries: None,
        print_maps: true,
        work: 0,
    };
    let program = checker.program();
    let mut errors = checker.errors;
    errors.truncate(ERRORS_MAX);
    match program {
        Some(program) if errors.is_empty() => Ok(program),
        _ => Err(Diagnostics::new(&script.source, errors)),
    }
}

impl Checker<'_> {
    fn program(&mut self) -> Option<Program> {
        self.configure();
        self.name_enums();
        self.define_records();
        self.define_enums();
        let actions: Vec<Points> =
            self.script.tree.actions.iter().filter_map(|action| self.points(action)).collect();
        if !self.errors.is_empty() {
            return None;
        }
        for _ in 0..PASSES_MAX {
            let known = self.maps.known();
            self.pass(&actions);
            self.errors.clear();
            if self.maps.known() == known {
                break;
            }
        }
        self.is_last_pass = true;
        let (attachments, bodies) = self.pass(&actions);
        let maps = self.map_infos();
        let (map_entries, print_maps) = (self.map_entries, self.print_maps);
        let missing = std::mem::take(&mut self.missing);
        Some(Program { attachments, bodies, missing, maps, map_entries, print_maps })
    }

    /// Checks all actions once.
    fn pass(&mut self, all: &[Points]) -> (Vec<Attachment>, Vec<Body>) {
        self.work = 0;
        let mut attachments: Vec<Attachment> = Vec::new();
        let mut found = hashbrown::HashMap::new();
        let mut bodies = Vec::new();
        for (points, action) in all.iter().zip(&self.script.tree.actions) {
            let mut known: Vec<(Place, usize)> = Vec::new();
            for point in &points.points {
                let Some(body) = self.body_for(point, action, &mut known, &mut bodies) else {
                    break;
                };
                let index = *found.entry(point.attachment()).or_insert_with(|| {
                    let (kind, name) = (point.kind.clone(), Arc::clone(&point.name));
                    let bodies = Vec::new();
                    attachments.push(Attachment { kind, name, is_of_pattern: true, bodies });
                    attachments.len() - 1
                });
                attachments[index].is_of_pattern &= point.is_of_pattern;
                attachments[index].bodies.push(body);
            }
        }
        (attachments, bodies)
    }

    /// The index of an action's body at a point: an earlier one, if all that it uses is alike.
    fn body_for(
        &mut self,
        point: &Point,
        action: &Action,
        known: &mut Vec<(Place, usize)>,
        bodies: &mut Vec<Body>,
    ) -> Option<usize> {
        let same = known.iter().find(|(place, _)| place.is_like(&point.place));
        if let Some((_, body)) = same {
            return Some(*body);
        }
        let (body, uses_args) = self.body(action, &point.place)?;
        let mut place = point.place.clone();
        if !uses_args {
            place.forget_arguments();
        }
        bodies.push(body);
        known.push((place, bodies.len() - 1));
        Some(bodies.len() - 1)
    }
}
