mod api;
mod boot;
mod hits;
mod lifecycle;
mod program;
mod refusals;
