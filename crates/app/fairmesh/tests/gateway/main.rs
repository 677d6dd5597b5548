//! A gateway of two tenants with nodes and pods as real processes: which services each pod reaches, and what false
//! claims gain.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

mod bounds;
mod demo;
mod entry;
mod floods;
mod launches;
mod lies;
mod loads;
mod mesh;
mod placement;
mod policies;
mod routes;
mod sandbox;
mod slow;
mod upgrade;
