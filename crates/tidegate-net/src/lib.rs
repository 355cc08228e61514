//! Network and process plumbing shared by the service and the gateway.
//!
//! ```text
//!   accept            the loop that accepts connections until the shutdown
//!   listen            listening sockets at one address, one per worker
//!   shutdown_signal   shutdown signal shared by the workers
//!   file_watcher      detects changes of a file by polling
//!   metrics_page      metrics in the text format of Prometheus
//!   histogram         lock-free histograms
//!   process_metrics   process_* metrics from /proc/self
//! ```
//!
//! Nothing here knows a protocol, a limit or a store.

pub mod accept;
pub mod file_watcher;
pub mod histogram;
pub mod listen;
pub mod metrics_page;
pub mod process_metrics;
pub mod shutdown_signal;

pub use accept::accept_connections;
pub use file_watcher::{FilePoll, FileWatcher, PollThread};
pub use listen::listen;
pub use shutdown_signal::Shutdown;
