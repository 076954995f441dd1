mod api;
mod boot;
mod hits;
mod lifecycle;
mod program;
mod refusals;
mod stock;

use exoprobe_tests::harness::Case;

pub(crate) const ALL: [&[Case]; 7] = [
    api::CASES,
    boot::CASES,
    hits::CASES,
    lifecycle::CASES,
    program::CASES,
    refusals::CASES,
    stock::CASES,
];
