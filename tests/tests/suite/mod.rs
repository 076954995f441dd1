mod api;
mod boot;
mod counts;
mod hits;
mod lifecycle;
mod program;
mod refusals;
mod stock;

use exoprobe_tests::harness::Case;

pub(crate) const ALL: [&[Case]; 8] = [
    api::CASES,
    boot::CASES,
    counts::CASES,
    hits::CASES,
    lifecycle::CASES,
    program::CASES,
    refusals::CASES,
    stock::CASES,
];
