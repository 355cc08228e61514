//! The parts of the benchmarks: keys, subjects, measurements and process statistics.
//!
//! `cargo bench` runs `compare/`, which sends the same requests to Tidegate and its peers in turn. `cargo
//! xtask instructions` runs `examples/instructions.rs` under valgrind. Both use [`Tidegate`], which calls the
//! public interface of the library.
//!
//! The measuring loop is our own. On a shared machine only the ratio between subjects that were measured
//! within the same second is meaningful, and no framework interleaves its subjects. Figures of different days
//! are not compared.

pub mod bench_subject;
pub mod bucket_quota;
pub mod keys;
pub mod measurement;
pub mod process_stats;
pub mod tidegate_subject;

pub use bench_subject::{BenchClient, BenchDecision, BenchSubject};
pub use bucket_quota::BucketQuota;
pub use keys::Keys;
pub use measurement::{LatencyQuantiles, MeasurementPlan, Measurements, RequestMode, Stopwatch, measure};
pub use tidegate_subject::Tidegate;
