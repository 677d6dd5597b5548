//! Tests of authorization at a control plane with a trust domain.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../support/mod.rs"]
mod support;

#[path = "../support/members.rs"]
mod members;

mod audit;
mod checkers;
mod isolation;
mod machines;
mod pages;
mod reports;
mod roles;
mod service_identities;
mod statements;
mod tokens;
mod unreadable_records;
