mod boot;
mod hits;
mod lifecycle;
mod refusals;
