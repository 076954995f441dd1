//! The guest kernel's memory and code.

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use exoprobe_probes::AddressSpace;
use serde::Deserialize;
use utoipa::IntoParams;

use super::answers::{NeedsGuest, NotFound, Problems, Refused};
use super::code::{CodeApi, address_at};
use super::extract::Query;
use super::extract::blocking;
use super::problem::Problem;
use super::wire::{CodeLine, DataPlace, Memory, Place};

/// Bytes that are given unless the client says.
const DEFAULT_LEN: usize = 64;
/// Most bytes of one answer.
const MAX_LEN: usize = 64 << 10;

pub(crate) fn routes(api: CodeApi) -> Router {
    Router::new()
        .route("/v1/memory", get(memory))
        .route("/v1/disassembly", get(disassembly))
        .with_state(api)
}

/// Which memory.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct MemoryQuery {
    /// Where: an address, `SYMBOL[+OFFSET]`, or `%REG[+OFFSET]`, a register of `vcpu`.
    at: DataPlace,
    /// How many bytes: 64 when absent.
    #[param(maximum = 65_536)]
    len: Option<usize>,
    /// The vCPU of the register, and of which the loaded page tables map an address of user mode: 0 when absent.
    vcpu: Option<u8>,
    /// The task whose page tables map an address of user mode, running or not; `vcpu` is the register's alone then.
    pid: Option<u32>,
}

/// Memory of the guest by virtual address, as it would be without probes: the kernel's, or of user mode.
#[utoipa::path(get, path = "/v1/memory", tag = "memory", operation_id = "memory",
    params(MemoryQuery), responses((status = 200, body = Memory), Problems, NeedsGuest, NotFound, Refused))]
pub(crate) async fn memory(
    State(CodeApi { engine, .. }): State<CodeApi>,
    Query(query): Query<MemoryQuery>,
) -> Result<Json<Memory>, Problem> {
    let len = query.len.unwrap_or(DEFAULT_LEN);
    if len > MAX_LEN {
        return Err(Problem::malformed(format!("`len` is at most {MAX_LEN}")));
    }
    let vcpu = query.vcpu.unwrap_or_default();
    let space = query.pid.map_or(AddressSpace::Vcpu(vcpu), AddressSpace::Task);
    let read = blocking(move || -> Result<Memory, Problem> {
        let (at, mut bytes) = (address_at(&engine, &query.at, vcpu)?, vec![0; len]);
        engine.read_in(space, at, &mut bytes)?;
        Ok(Memory::new(at.0, &bytes))
    });
    Ok(Json(read.await??))
}

/// Which code.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct CodeQuery {
    /// A function, or an address in it.
    at: Place,
}

/// The instructions of a function of the guest's kernel, as they are without probes.
///
/// With source lines (`source`) where the symbols' file or that of `--debug-info` has DWARF.
#[utoipa::path(get, path = "/v1/disassembly", tag = "memory", operation_id = "disassembly",
    params(CodeQuery), responses((status = 200, body = Vec<CodeLine>), Problems, NeedsGuest, NotFound, Refused))]
pub(crate) async fn disassembly(
    State(api): State<CodeApi>,
    Query(query): Query<CodeQuery>,
) -> Result<Json<Vec<CodeLine>>, Problem> {
    Ok(Json(blocking(move || api.disassemble(&query.at)).await??))
}
