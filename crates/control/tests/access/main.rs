//! Who may do what at a control plane with a trust domain.

#[path = "../support/mod.rs"]
mod support;

#[path = "../support/members.rs"]
mod members;

mod audit;
mod isolation;
mod machines;
mod roles;
mod statements;
