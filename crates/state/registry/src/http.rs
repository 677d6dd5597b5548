//! The registry over HTTP/1.1 and JSON, for programs without gRPC. Bodies have the same fields as specs in YAML
//! files.
//!
//! | call | body | response |
//! |---|---|---|
//! | `POST /v1/register` | `{service, endpoints: [{instance, address, region, …}]}` | `{revision}` |
//! | `POST /v1/renew` | `{service, instances: []}` | `{unknown: []}`: instances that must register again |
//! | `POST /v1/report` | `{service, reports: [{instance, state}]}` | `{revision}` |
//! | `POST /v1/drain` | `{service, instances: [], deadline: "30s"}` | `{revision, callersMoved, behind: []}` |
//! | `POST /v1/deregister` | `{service, instances: []}` | `{revision}` |
//! | `GET /v1/shards/{tenant}/{service}` | | the map, with its version |
//! | `PUT /v1/shards/{tenant}/{service}` | the map, with the version that was read; version 0 or none creates a map | `{version}` |
//! | `POST /v1/shards/{tenant}/{service}/split` | `{shard, at}`; without `at`, splits in the middle | `{version}` |
//! | `POST /v1/shards/{tenant}/{service}/merge` | `{shard}`: merges the next shard into this one | `{version}` |
//! | `GET /v1/shards/{tenant}/{service}/moves` | | `{moves: [{shard, role, from, to, phase}]}` |
//! | `POST /v1/shards/{tenant}/{service}/moves` | `{shard, role, from, to}`; without `from` it adds a copy, without `to` it drops one | `{}` with status 202 |
//! | `GET /v1/shards/{tenant}/{service}/loads` | | `{servers: [{instance, work, shards, …}]}` |
//! | `GET /v1/shards/{tenant}/{service}/plan?threshold=&maxMoves=&replicate=` | | `{moves, servers, notes}` |
//! | `POST /v1/shards/{tenant}/{service}/ready` | `{instance, ready: []}`: the starting shards that are loaded | `{}` |
//!
//! Errors are `{error, field, hint}` with 400 (invalid), 404 (not found), 409 (refused at present, or changed
//! concurrently), 413 (body above 1 MiB) or 503 (the store takes no writes).

mod endpoints;
mod json;
mod loads;
mod shards;

use axum::{
    Router,
    extract::DefaultBodyLimit,
    http::StatusCode,
    routing::{get, post},
};
use fairmesh_model::Invalid;

use crate::Registry;
use json::Failure;

/// Hint in errors about paths, methods and fields.
const REFERENCE: &str = "see docs/http.md for the calls and their fields";

/// Maximum size of a body, in bytes.
const MAX_BODY: usize = 1 << 20;

impl Registry {
    /// Returns the HTTP/JSON routes, with fallbacks for unknown paths and methods.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/v1/register", post(endpoints::register))
            .route("/v1/renew", post(endpoints::renew))
            .route("/v1/report", post(endpoints::report))
            .route("/v1/drain", post(endpoints::drain))
            .route("/v1/deregister", post(endpoints::deregister))
            .route("/v1/shards/{tenant}/{service}", get(shards::get).put(shards::put))
            .route("/v1/shards/{tenant}/{service}/split", post(shards::split))
            .route("/v1/shards/{tenant}/{service}/merge", post(shards::merge))
            .route("/v1/shards/{tenant}/{service}/moves", get(shards::moves).post(shards::begin_move))
            .route("/v1/shards/{tenant}/{service}/loads", get(loads::loads))
            .route("/v1/shards/{tenant}/{service}/plan", get(loads::plan))
            .route("/v1/shards/{tenant}/{service}/ready", post(shards::ready))
            .method_not_allowed_fallback(async || {
                let reason = Invalid::new("", "this path takes another method", REFERENCE);
                Failure { status: StatusCode::METHOD_NOT_ALLOWED, reason }
            })
            .fallback(async || {
                let reason = Invalid::new("", "there is no such path", REFERENCE);
                Failure { status: StatusCode::NOT_FOUND, reason }
            })
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .with_state(self.clone())
    }
}

#[cfg(test)]
mod tests;
