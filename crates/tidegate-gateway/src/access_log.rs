//! The access log: one line for every request.

mod entry;
mod writer;

pub use entry::{Entry, Format};
pub use writer::Logbook;
pub(crate) use writer::Page;
