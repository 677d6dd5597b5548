//! Bucket tables, and packets that walk their chains: what the redirectors of a fleet make of connections while replicas come and go.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

mod fleet;
#[path = "../../../../../vectors/support.rs"]
mod support;
mod table;
mod vectors;
mod walk;
