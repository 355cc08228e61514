//! The commands that talk to a server, with a server that really runs.

mod asks;
mod leases;
mod limits;
mod logged;
mod reach;
mod serving;
mod tokens;

pub(crate) use serving::Serving;
