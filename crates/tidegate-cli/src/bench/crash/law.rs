use clap::ValueEnum;
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Law { Total, Key, Day, Interval, Sliding, Bucket, Concurrency }
impl Law { pub(crate) const ALL: [Law; 7] = [Law::Total, Law::Key, Law::Day, Law::Interval, Law::Sliding, Law::Bucket, Law::Concurrency]; }
impl std::fmt::Display for Law { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { write!(f, "{self:?}") } }
