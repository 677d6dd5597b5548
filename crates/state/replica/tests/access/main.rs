//! Tests the authorization of callers of a replica in a mesh with a trust domain.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../../../control-plane/control/tests/support/mod.rs"]
mod support;

#[path = "../../../../control-plane/control/tests/support/members.rs"]
#[allow(dead_code, reason = "these tests use a part of it")]
mod members;

mod calls;
mod methods;
mod strict_replica;
