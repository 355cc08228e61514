//! The server's doors: how answers are spoken to programs elsewhere.
//!
//! A door turns its wire types into [`Order`](tidegate::Order)s and [`Answers`](tidegate::Answers) into its wire types. It knows no
//! store but by the contract, and no socket: bytes go in, bytes come out, and whoever has the socket decides when.

pub mod resp;
