//! The guest kernel's symbols.

use axum::extract::State;
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use exoprobe_guest::Gva;
use exoprobe_introspect::SymbolTable;
use exoprobe_probes::ProbeError;
use serde::Deserialize;
use utoipa::IntoParams;

use super::answers::{NeedsGuest, NotFound, Problems, Refused};
use super::code::CodeApi;
use super::extract::Query;
use super::extract::blocking;
use super::problem::Problem;
use super::wire::{Address, AddressText, SourceLine, Symbol};

/// Header of how many there are, of which `limit` may leave some out.
const TOTAL: HeaderName = HeaderName::from_static("exoprobe-total");
/// Default of `limit`.
pub(super) const DEFAULT_LIMIT: usize = 100;
/// Most of one answer: it is made in memory.
pub(super) const MAX_LIMIT: usize = 10_000;

pub(crate) fn routes(api: CodeApi) -> Router {
    Router::new().route("/v1/symbols", get(symbols)).with_state(api)
}

/// Which symbols.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SymbolsQuery {
    /// Their names: `*` stands for any run of characters, `?` for any one. All when absent.
    #[param(example = "vfs_*")]
    name: Option<String>,
    /// The function that has this address, if its name is as `name` says.
    at: Option<AddressText>,
    /// The functions that have code of this source line, if their names are as `name` says. Not
    /// together with `at`.
    line: Option<SourceLine>,
    /// Most symbols to give: 100 when absent, 10,000 at most.
    limit: Option<usize>,
}

/// Symbols of the guest's kernel, by name or by address.
///
/// Where the kernel has them (KASLR). Without `--symbols`, and with a kernel file that has none,
/// they are the kernel's own, read from its memory: 503 until it runs. In order of their names,
/// modules' after the kernel's (`MODULE:NAME` are that module's only); a name may have several
/// addresses. A plain name that nothing has is 404, with names like it (`near`). By address also
/// where the source has it (`source`), from the DWARF of the symbols' file or of `--debug-info`. By
/// source line a symbol for each copy of its code, inlined or not, in the order of their addresses:
/// `offset` is where the copy begins. A line without code is 404, with the next that has some.
#[utoipa::path(get, path = "/v1/symbols", tag = "symbols", operation_id = "symbols",
    params(SymbolsQuery),
    responses((status = 200, body = Vec<Symbol>,
        headers(("exoprobe-total" = u64, description = "How many there are, also beyond `limit`"))),
        Problems, NeedsGuest, NotFound, Refused))]
pub(crate) async fn symbols(
    State(api): State<CodeApi>,
    Query(query): Query<SymbolsQuery>,
) -> Result<Response, Problem> {
    let at = query.at.map(|text| Gva::try_from(Address::Text(text))).transpose();
    let at = at.map_err(Problem::malformed_request)?;
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT);
    let name = query.name.unwrap_or_else(|| "*".to_owned());
    if at.is_some() && query.line.is_some() {
        return Err(Problem::new("EINVAL", "give `at` or `line`, not both"));
    }
    let found = blocking(move || {
        let table = api.engine.symbols()?;
        match (at, &query.line) {
            (Some(at), _) => Ok((vec![covering(&api, &table, at, &name)?], 1)),
            (None, Some(line)) => of_line(&api, &table, line, &name, limit),
            (None, None) => Ok(matching(&table, &name, limit)?),
        }
    });
    let (symbols, total) = found.await?.map_err(|problem: Problem| problem)?;
    Ok(with_total(Json(symbols).into_response(), total))
}

/// An answer that says how many there are in all.
pub(super) fn with_total(mut response: Response, total: usize) -> Response {
    response.headers_mut().insert(TOTAL, HeaderValue::from(total));
    response
}

/// The function that has an address, if its name matches.
fn covering(api: &CodeApi, table: &SymbolTable, at: Gva, name: &str) -> Result<Symbol, Problem> {
    let symbol = table.resolve(at).and_then(|found| {
        let is_it = |symbol: &exoprobe_introspect::Symbol<'_>| {
            symbol.address == found.start
                && symbol.module == found.module
                && symbol.name == found.name
        };
        let symbol = table.search(name).find(is_it)?;
        Some(Symbol { offset: Some(found.offset), ..Symbol::from(symbol) })
    });
    let none = || format!("no function of the kernel whose name is as `{name}` has {at}");
    let symbol = symbol.ok_or_else(|| Problem::new("ENOENT", none()))?;
    Ok(Symbol { source: api.source(table, at)?, ..symbol })
}

/// The functions that have code of a line, those whose names match.
fn of_line(
    api: &CodeApi,
    table: &SymbolTable,
    line: &SourceLine,
    name: &str,
    limit: usize,
) -> Result<(Vec<Symbol>, usize), Problem> {
    let addresses = api.addresses(table, line)?;
    let found: Vec<_> =
        addresses.into_iter().filter_map(|at| covering(api, table, at, name).ok()).collect();
    let total = found.len();
    Ok((found.into_iter().take(limit).collect(), total))
}

fn matching(
    table: &SymbolTable,
    name: &str,
    limit: usize,
) -> Result<(Vec<Symbol>, usize), ProbeError> {
    let mut total = 0;
    let mut symbols = Vec::new();
    for symbol in table.search(name) {
        total += 1;
        if symbols.len() < limit {
            symbols.push(Symbol::from(symbol));
        }
    }
    if total == 0 && !name.contains(['*', '?']) {
        // The error has names like it.
        table.lookup(name)?;
    }
    Ok((symbols, total))
}
