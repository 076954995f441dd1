//! The OpenAPI document, generated from the routes.

use axum::http::header;
use axum::response::IntoResponse;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{PathItem, RefOr};
use utoipa::{Modify, OpenApi};

use super::answers::Problems;
use super::exact::{UnreadableRequests, make_exact};
use super::problem::ProblemDocument;
use super::{
    console, events, histograms, kprobes, memory, modules, probes, script_maps, script_output,
    scripts, serial, stack, symbols, tasks, tracefs, types, vm, wire,
};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "exoprobe",
        description = "Kprobes in a guest's Linux kernel, from outside the guest.\n\nThe service \
            listens on a unix socket. Where it listens on TCP as well, every request there needs \
            the bearer token."
    ),
    paths(
        vm::status, vm::config, vm::pause, vm::resume, vm::reboot, vm::power_button, vm::shutdown, vm::snapshot, vm::dump, vm::registers,
        serial::serial_output, serial::serial_input, console::output, console::input, console::resize,
        probes::list, probes::create, probes::change_all, probes::remove_all, probes::show, probes::change,
        probes::remove, probes::unregister, histograms::list,
        kprobes::list, kprobes::enabled, kprobes::switch, kprobes::optimization, kprobes::optimize,
        kprobes::blacklist,
        symbols::symbols, types::list, types::show, tasks::tasks, modules::modules, memory::memory,
        memory::disassembly, stack::stack, stack::task_stack, events::events, events::clear,
        scripts::list, scripts::create, scripts::show, script_output::output, script_maps::maps, scripts::commands, scripts::remove,
        tracefs::root, tracefs::read, tracefs::replace, tracefs::append, tracefs::remove, openapi_document,
    ),
    components(schemas(ProblemDocument, wire::Lost, wire::Place, wire::DataPlace, wire::SourceLine)),
    modifiers(&ShortNames, &BearerToken, &UnreadableRequests),
    security((), ("token" = [])),
    tags(
        (name = "vm", description = "The guest: state, run control, registers, stacks, serial ports, the virtio console"),
        (name = "probes", description = "Probes"),
        (name = "kprobes", description = "All probes together, as in the kernel's debugfs"),
        (name = "symbols", description = "The guest kernel's symbols"),
        (name = "types", description = "The guest kernel's types"),
        (name = "tasks", description = "The guest's processes"),
        (name = "modules", description = "The guest's loadable modules"),
        (name = "memory", description = "The guest kernel's memory and code"),
        (name = "events", description = "Hits of probes"),
        (name = "scripts", description = "Scripts in the bpftrace language, which run outside the guest"),
        (name = "tracefs", description = "The kprobe event tracer's files, as in the kernel's tracefs"),
        (name = "meta", description = "This document"),
    )
)]
struct Document;

/// The OpenAPI document as JSON, with a line end.
#[must_use]
pub fn openapi_json() -> String {
    let document = serde_json::to_value(Document::openapi());
    let mut document = document.expect("the document has text keys only");
    make_exact(&mut document);
    format!("{document:#}\n")
}

/// Routes that name a group are there without it, too.
struct ShortNames;

impl Modify for ShortNames {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let paths = &mut document.paths.paths;
        let Some(long) = paths.get("/v1/probes/{group}/{event}") else { return };
        let mut short: PathItem = long.clone();
        let operations = [&mut short.get, &mut short.patch, &mut short.delete];
        for operation in operations.into_iter().flatten() {
            operation.summary.iter_mut().for_each(|s| s.push_str(" Of the group `kprobes`."));
            operation.operation_id.iter_mut().for_each(|id| id.push_str("_of_kprobes"));
            let parameters = operation.parameters.iter_mut();
            parameters.for_each(|all| {
                all.retain(|p| !matches!(p, RefOr::T(p) if p.name == "group"));
            });
        }
        paths.insert("/v1/probes/{event}".to_owned(), short);
    }
}

/// The token of TCP listeners.
struct BearerToken;

impl Modify for BearerToken {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        components.add_security_scheme("token", SecurityScheme::Http(scheme));
    }
}

/// This document.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "meta", operation_id = "openapi",
    responses((status = 200, body = Object, content_type = "application/json"), Problems))]
pub(super) async fn openapi_document() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], openapi_json())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_committed_document_is_current() {
        let committed = include_str!("../../../docs/openapi.json");
        assert!(
            committed == super::openapi_json(),
            "docs/openapi.json is out of date: run `cargo run -q --bin exoprobe -- openapi > docs/openapi.json`"
        );
    }
}
