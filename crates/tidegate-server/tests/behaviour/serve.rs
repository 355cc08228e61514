//! The listener: sockets, threads and time, under load and attack.
