mod adding;
mod api;
mod boot;
mod calls;
mod collecting;
mod counts;
mod dead;
mod docs;
mod dump;
mod early;
mod embed;
mod entry;
mod events;
mod everywhere;
mod faults;
mod filters;
mod handlers;
mod hits;
mod holds;
mod kernel_6_12;
mod lifecycle;
mod messages;
mod moments;
mod openapi;
mod optimize;
mod own_symbols;
mod program;
mod refusals;
mod registration;
mod resident;
mod returns;
mod slots;
mod smp;
mod source_lines;
mod stacks;
mod stock;
mod stress;
mod tasks;
mod text;
mod tracefs;
mod triggers;
mod types;
mod usermem;
mod values;
mod vectors;

use exoprobe_tests::harness::Case;

pub(crate) const ALL: &[&[Case]] = &[
    adding::CASES,
    api::CASES,
    boot::CASES,
    calls::CASES,
    collecting::CASES,
    counts::CASES,
    dead::CASES,
    docs::CASES,
    dump::CASES,
    early::CASES,
    embed::CASES,
    entry::CASES,
    events::CASES,
    everywhere::CASES,
    faults::CASES,
    filters::CASES,
    handlers::CASES,
    hits::CASES,
    holds::CASES,
    kernel_6_12::CASES,
    lifecycle::CASES,
    messages::CASES,
    moments::CASES,
    openapi::CASES,
    optimize::CASES,
    own_symbols::CASES,
    program::CASES,
    refusals::CASES,
    registration::CASES,
    resident::CASES,
    returns::CASES,
    smp::CASES,
    source_lines::CASES,
    stacks::CASES,
    stock::CASES,
    stress::CASES,
    tasks::CASES,
    text::CASES,
    tracefs::CASES,
    triggers::CASES,
    types::CASES,
    usermem::CASES,
    values::CASES,
    vectors::CASES,
];
