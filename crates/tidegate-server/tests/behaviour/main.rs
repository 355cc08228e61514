//! What the server does, seen from outside.

mod api;
mod resp;
mod serve;
