//! Routes of the machine: state, run control, snapshots, registers.

use std::pin::pin;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::routing::{get, post};
use exoprobe_introspect::SourceLines;
use exoprobe_probes::Engine;
use exoprobe_tracer::Tracer;
use exoprobe_vmm::{ControlError, VirtioConsole, Vm, WriteProgress};

use super::answers::{NeedsGuest, NoRoom, NotFound, Problems, Refused, WritesFile};
use super::extract::blocking;
use super::extract::{Json, Path};
use super::problem::Problem;
use super::wire::{DumpRequest, DumpWritten, Snapshot, SnapshotRequest, VcpuRegisters, VmStatus};
use crate::machine_file::MachineFile;
use crate::scripts::Scripts;
use crate::service::{Closing, Growth};

/// State that these routes share.
#[derive(Clone)]
pub(crate) struct VmApi {
    pub(crate) vm: Arc<Vm>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) tracer: Arc<Tracer>,
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) lines: Option<Arc<SourceLines>>,
    /// All that the service was started with.
    pub(crate) file: Arc<MachineFile>,
    /// Tells when a serial port's output has grown.
    pub(crate) growth: [Growth; 2],
    /// The virtio console, and the growth of its output.
    pub(crate) virtio_console: Option<(Arc<VirtioConsole>, Growth)>,
    pub(crate) closing: Closing,
}

pub(crate) fn routes(api: VmApi) -> Router {
    Router::new()
        .route("/v1/vm", get(status))
        .route("/v1/vm/config", get(config))
        .route("/v1/vm/pause", post(pause))
        .route("/v1/vm/resume", post(resume))
        .route("/v1/vm/reboot", post(reboot))
        .route("/v1/vm/power-button", post(power_button))
        .route("/v1/vm/shutdown", post(shutdown))
        .route("/v1/vm/snapshot", post(snapshot))
        .route("/v1/vm/dump", post(dump))
        .route("/v1/vm/registers/{vcpu}", get(registers))
        .with_state(api)
}

/// The guest's state.
#[utoipa::path(get, path = "/v1/vm", tag = "vm", operation_id = "vm_status",
    responses((status = 200, body = VmStatus), Problems))]
pub(crate) async fn status(State(api): State<VmApi>) -> Result<axum::Json<VmStatus>, Problem> {
    let status = blocking(move || VmStatus::new(&api.vm, &api.engine));
    Ok(axum::Json(status.await?))
}

/// The file of this machine, as `exoprobe run --config` takes it.
#[utoipa::path(get, path = "/v1/vm/config", tag = "vm", operation_id = "vm_config",
    responses((status = 200, body = MachineFile), Problems))]
pub(crate) async fn config(State(api): State<VmApi>) -> axum::Json<MachineFile> {
    axum::Json(MachineFile::clone(&api.file))
}

/// Take all vCPUs out of the guest.
#[utoipa::path(post, path = "/v1/vm/pause", tag = "vm", operation_id = "vm_pause",
    responses((status = 200, body = VmStatus), Problems, NeedsGuest))]
pub(crate) async fn pause(State(api): State<VmApi>) -> Result<axum::Json<VmStatus>, Problem> {
    let vm = Arc::clone(&api.vm);
    blocking(move || vm.pause()).await??;
    status(State(api)).await
}

/// Let the vCPUs run again; what a probe holds goes on with the hit.
#[utoipa::path(post, path = "/v1/vm/resume", tag = "vm", operation_id = "vm_resume",
    responses((status = 200, body = VmStatus), Problems, NeedsGuest))]
pub(crate) async fn resume(State(api): State<VmApi>) -> Result<axum::Json<VmStatus>, Problem> {
    let vm = Arc::clone(&api.vm);
    blocking(move || vm.resume()).await??;
    status(State(api)).await
}

/// Boot the guest again, whatever it is doing, also when it has stopped.
///
/// Its kernel and initramfs are read anew. Its output, its time and the counts of exits go on.
#[utoipa::path(post, path = "/v1/vm/reboot", tag = "vm", operation_id = "vm_reboot",
    responses((status = 200, body = VmStatus), Problems, NeedsGuest, NoRoom))]
pub(crate) async fn reboot(State(api): State<VmApi>) -> Result<axum::Json<VmStatus>, Problem> {
    let vm = Arc::clone(&api.vm);
    blocking(move || vm.reboot()).await??;
    status(State(api)).await
}

/// Press the guest's power button, for which a distribution shuts itself down.
///
/// The answer does not wait for that. A guest that does not watch the button is 503 EAGAIN.
#[utoipa::path(post, path = "/v1/vm/power-button", tag = "vm", operation_id = "vm_power_button",
    responses((status = 200, body = VmStatus), Problems, NeedsGuest))]
pub(crate) async fn power_button(
    State(api): State<VmApi>,
) -> Result<axum::Json<VmStatus>, Problem> {
    let vm = Arc::clone(&api.vm);
    blocking(move || vm.press_power_button()).await??;
    status(State(api)).await
}

/// Stop the guest, as if its plug were pulled; the service stays.
#[utoipa::path(post, path = "/v1/vm/shutdown", tag = "vm", operation_id = "vm_shutdown",
    responses((status = 200, body = VmStatus), Problems))]
pub(crate) async fn shutdown(State(api): State<VmApi>) -> Result<axum::Json<VmStatus>, Problem> {
    let vm = Arc::clone(&api.vm);
    blocking(move || vm.shut_down()).await?;
    status(State(api)).await
}

/// Write the whole machine to a file on the service's host.
///
/// Refused while probes are registered: their breakpoints would be part of it. The end of the
/// client's connection, or of the service, ends it; there is no file then.
#[utoipa::path(post, path = "/v1/vm/snapshot", tag = "vm", operation_id = "vm_snapshot",
    request_body = SnapshotRequest,
    responses((status = 200, body = Snapshot), Problems, NeedsGuest, Refused, NoRoom))]
pub(crate) async fn snapshot(
    State(api): State<VmApi>,
    Json(SnapshotRequest { path }): Json<SnapshotRequest>,
) -> Result<axum::Json<Snapshot>, Problem> {
    check_absolute(&path)?;
    let closing = api.closing.clone();
    let written = until_closed(closing, move |progress| {
        let written = api.vm.snapshot_if(&path, progress, || api.engine.traceless());
        if let Err(ControlError::Stopped) = written {
            let detail = "the guest has stopped, and so would one restored from its snapshot; \
                          `exoprobe stack`, `ps` and `x` read it as it is, and \
                          `exoprobe vm dump` writes it to a file";
            return Err(Problem::new("ESHUTDOWN", detail.to_owned()));
        }
        if !written? {
            let detail = match api.engine.calls_followed() {
                0 => "delete the probes first".to_owned(),
                calls => format!(
                    "delete the probes first, and wait: {calls} calls that return probes follow have not \
                     returned yet"
                ),
            };
            return Err(Problem::new("EBUSY", detail));
        }
        let bytes =
            std::fs::metadata(&path).map_err(|error| Problem::new("EIO", error.to_string()))?.len();
        Ok(Snapshot { path, bytes })
    });
    Ok(axum::Json(written.await??))
}

/// Writes a file on a thread for it. The end of the request, or of the service, ends the write.
async fn until_closed<T: Send + 'static>(
    mut closing: Closing,
    write: impl FnOnce(&Arc<WriteProgress>) -> T + Send + 'static,
) -> Result<T, Problem> {
    let progress = Arc::new(WriteProgress::default());
    let ended = EndOnDrop(Arc::clone(&progress));
    let mut written = pin!(blocking(move || write(&progress)));
    tokio::select! {
        written = &mut written => written,
        () = closing.closed() => {
            ended.0.end();
            written.await
        }
    }
}

/// Ends a snapshot or dump whose request is given up: its client has gone.
struct EndOnDrop(Arc<WriteProgress>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Write the guest's RAM and registers to a file on the service's host, an ELF core for drgn.
///
/// A running guest stands still meanwhile; one that has stopped is written as it was at its end.
/// The end of the client's connection, or of the service, ends it; there is no file then.
#[utoipa::path(post, path = "/v1/vm/dump", tag = "vm", operation_id = "vm_dump",
    request_body = DumpRequest,
    responses((status = 200, body = DumpWritten), Problems, WritesFile, Refused, NoRoom))]
pub(crate) async fn dump(
    State(api): State<VmApi>,
    Json(DumpRequest { path, force }): Json<DumpRequest>,
) -> Result<axum::Json<DumpWritten>, Problem> {
    check_absolute(&path)?;
    let closing = api.closing.clone();
    let written = until_closed(closing, move |progress| {
        let written = api.vm.dump(&path, force, progress, || api.engine.dump_notes());
        written.map(|made| DumpWritten {
            path,
            bytes: made.bytes,
            stood_ms: u64::try_from(made.stood.as_millis()).unwrap_or(u64::MAX),
        })
    });
    Ok(axum::Json(written.await??))
}

fn check_absolute(path: &std::path::Path) -> Result<(), Problem> {
    if path.is_absolute() {
        return Ok(());
    }
    Err(Problem::new("EINVAL", format!("{} is not an absolute path", path.display())))
}

/// Registers of a vCPU.
#[utoipa::path(get, path = "/v1/vm/registers/{vcpu}", tag = "vm", operation_id = "vcpu_registers",
    params(("vcpu" = u64, Path, description = "vCPU, from 0")),
    responses((status = 200, body = VcpuRegisters), Problems, NeedsGuest, NotFound))]
pub(crate) async fn registers(
    State(api): State<VmApi>,
    Path(vcpu): Path<u64>,
) -> Result<axum::Json<VcpuRegisters>, Problem> {
    let index = u8::try_from(vcpu)
        .map_err(|_| Problem::new("ENOENT", format!("there is no vCPU {vcpu}")))?;
    let registers = blocking(move || api.vm.registers(index)).await??;
    Ok(axum::Json(VcpuRegisters::new(index, &registers)))
}
