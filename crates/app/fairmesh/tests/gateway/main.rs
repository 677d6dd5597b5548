//! A gateway of two tenants, their nodes and pods as real processes: who reaches whom, and what liars reach.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

mod bounds;
mod demo;
mod floods;
mod lies;
mod loads;
mod mesh;
mod placement;
mod policies;
mod routes;
mod slow;
mod upgrade;
