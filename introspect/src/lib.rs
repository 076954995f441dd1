//! Reads a guest's memory as Linux: virtual memory, symbols, types, tasks, stacks, modules and the
//! exception table.
//!
//! Everything works over [`GuestView`], two methods that a live virtual machine and a plain
//! [`MemoryImage`] both provide. Guest memory, kernel images and symbol files are hostile input:
//! the parsers here are bounded in time and memory, and never panic, whatever they are given.
#![forbid(unsafe_code)]

pub mod banner;
pub mod btf;
pub mod extable;
pub mod image;
pub mod kallsyms;
pub mod kernel_image;
pub mod lines;
pub mod modules;
mod name_hash;
mod printable;
mod regular_file;
pub mod symbols;
pub mod task;
pub mod task_fields;
pub mod task_list;
pub mod unwind;
pub mod view;
pub mod virt;
pub mod vmcoreinfo;

pub use banner::{Banner, BannerError, Version};
pub use btf::Btf;
pub use extable::{ExceptionTable, ExtableError, Fixup};
pub use image::MemoryImage;
pub use kallsyms::KallsymsError;
pub use kernel_image::KernelImage;
pub use lines::{LineError, LinesError, SourceLines, SourceLocation, SourcePlace};
pub use modules::{Module, ModuleError, ModuleLayout, ModuleState, NoModules};
pub use printable::{printable, printable_json, printable_lines};
pub use symbols::glob::matches as glob_matches;
pub use symbols::{
    FunctionBounds, LoadError, LookupError, Symbol, SymbolKind, SymbolOffset, SymbolTable,
};
pub use task::{Task, TaskError, TaskId, TaskLayout};
pub use unwind::{OrcError, OrcTables};
pub use view::{GuestView, ReadError};
pub use virt::{GuestString, VirtualMemory, VirtualReadError};
pub use vmcoreinfo::VmCoreInfo;
