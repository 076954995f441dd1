//! Definitions of synthetic events (histogram.rst, "Synthetic Events"): events that handlers of
//! histograms make of the values of hits.

mod definition;
mod error;
mod parse;
#[cfg(test)]
mod tests;

pub use definition::{SyntheticDefinition, SyntheticField, SyntheticType, TypeName};
pub use error::SyntheticError;
pub use parse::{SYNTHETIC_GROUP, SYNTHETIC_TEXT_MAX, SyntheticCommand, parse_synthetic};
