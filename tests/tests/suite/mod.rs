mod api;
mod boot;
mod counts;
mod hits;
mod lifecycle;
mod program;
mod refusals;
