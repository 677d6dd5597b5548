//! Tests of accepted and refused certificates over real connections, and of their renewal.

// Clippy treats test helpers like production code.
#![allow(clippy::unwrap_used)]

mod authority;
mod bundle_file;
mod federation;
mod jwt;
mod mesh_connections;
mod refused;
mod renewal;
mod retirement;
mod revoked;
mod rotation;
mod signed;
mod support;
mod tokens;
mod web_roots;
