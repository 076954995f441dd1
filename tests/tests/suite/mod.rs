mod api;
mod boot;
mod hits;
mod lifecycle;
mod program;
mod refusals;

use exoprobe_tests::harness::Case;

pub(crate) const ALL: [&[Case]; 6] =
    [api::CASES, boot::CASES, hits::CASES, lifecycle::CASES, program::CASES, refusals::CASES];
