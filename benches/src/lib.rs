//! What the benchmarks are made of: keys, subjects, rounds and what a machine says of itself.
//!
//! `cargo bench` runs `compare/`, which asks Tidegate and its peers the same questions in turn. `cargo xtask instructions`
//! runs `examples/instructions.rs` under valgrind. Both reach Tidegate through [`subjects`]:
//! the memory store by its handles, and beside it by the door that every store has.
//!
//! Decided: a measuring loop of our own. What counts on a machine shared with strangers is the ratio between subjects that were
//! measured within the same second, and no framework interleaves its subjects. Refused: comparing with figures of
//! another day.

pub mod keys;
pub mod machine;
pub mod rounds;
pub mod rule;
pub mod subject;
pub mod subjects;

pub use keys::Keys;
pub use rounds::{Figures, Plan, Shape, Watch, measure};
pub use rule::{Reach, Rule};
pub use subject::{Asker, Said, Subject};
