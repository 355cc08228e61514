//! What doors share: where a process meets sockets, files, its end, and those who look at its numbers.
//!
//! ```text
//!   listen      sockets at one address, one for each worker
//!   shutdown      the end, told once to everybody
//!   looking     a file that is read again when it has changed
//!   page        numbers in the text format of Prometheus
//!   histogram   how long things take, counted without waiting for anybody
//!   process     what the system knows about this process
//! ```
//!
//! Nothing here knows a protocol, a limit or a store. A door uses what it needs of it.

pub mod shutdown;
pub mod histogram;
pub mod listen;
pub mod file_watcher;
pub mod metrics_page;
pub mod process_metrics;

pub use shutdown::Shutdown;
pub use listen::listen;
pub use file_watcher::{FilePoll, FileWatcher, PollThread};
