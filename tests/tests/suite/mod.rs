//! The suites, in folders by the part of exoprobe that they prove. A case is called
//! `suite::case`, whatever its folder.

mod booting;
mod control;
mod detours;
mod devices;
mod hit;
mod kernels;
mod library;
mod reading;
mod return_probes;
mod service;
mod tracer;

use exoprobe_tests::harness::Case;

pub(crate) const ALL: &[&[Case]] = &[
    service::adding::CASES,
    service::api::CASES,
    detours::arrays::CASES,
    booting::boot::CASES,
    return_probes::calls::CASES,
    service::collecting::CASES,
    service::confinement::CASES,
    devices::console::CASES,
    hit::counts::CASES,
    booting::cpus::CASES,
    reading::dead::CASES,
    kernels::debian::CASES,
    devices::disks::CASES,
    devices::net::CASES,
    devices::reboots::CASES,
    devices::vsock::CASES,
    service::docs::CASES,
    reading::dump::CASES,
    booting::early::CASES,
    library::embed::CASES,
    booting::entry::CASES,
    service::events::CASES,
    hit::everywhere::CASES,
    hit::faults::CASES,
    hit::filters::CASES,
    hit::handlers::CASES,
    hit::hits::CASES,
    hit::holds::CASES,
    service::hostile::CASES,
    service::jail::CASES,
    service::jail_users::CASES,
    kernels::kernel_6_12::CASES,
    kernels::module_jmps::CASES,
    control::lifecycle::CASES,
    booting::memory::CASES,
    service::live::CASES,
    service::messages::CASES,
    booting::moments::CASES,
    service::openapi::CASES,
    detours::optimize::CASES,
    detours::texts::CASES,
    booting::own_symbols::CASES,
    service::program::CASES,
    service::proxy::CASES,
    control::refusals::CASES,
    control::registration::CASES,
    control::wildcards::CASES,
    service::resident::CASES,
    service::script_commands::CASES,
    service::scripts::CASES,
    service::tools::CASES,
    service::unit::CASES,
    return_probes::returns::CASES,
    detours::smp::CASES,
    reading::source_lines::CASES,
    return_probes::stacks::CASES,
    kernels::stock::CASES,
    detours::stress::CASES,
    reading::tasks::CASES,
    control::text::CASES,
    tracer::oracle::CASES,
    tracer::documentation::CASES,
    tracer::event_files::CASES,
    tracer::instances::CASES,
    tracer::instance_triggers::CASES,
    tracer::perf::CASES,
    tracer::readers::CASES,
    tracer::shell::CASES,
    tracer::trace_cmd::CASES,
    tracer::trace_files::CASES,
    tracer::tracefs::CASES,
    tracer::triggers::CASES,
    reading::types::CASES,
    hit::usermem::CASES,
    hit::values::CASES,
    hit::vectors::CASES,
];
