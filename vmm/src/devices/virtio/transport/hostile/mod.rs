//! Drivers that break every rule, through the registers as a guest has them.

mod driver;
mod published;
mod queues;
mod registers;
