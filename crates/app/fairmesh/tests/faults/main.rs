//! What callers see when things go wrong: control planes, agents and servers as real processes that are killed, frozen,
//! starved and stopped while calls run. Each test asserts how many calls failed (none, unless it says why) and the state
//! afterwards.
#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

mod attacks;
mod balance;
mod capture;
mod conformance;
mod control;
mod demo;
mod endurance;
mod errors;
mod full;
mod harness;
mod health;
mod imbalance;
mod inbound;
mod inside;
mod kernel;
mod limits;
mod lookaside;
mod loops;
mod messages;
mod outage;
mod own_lookaside;
mod proxy;
mod quota;
mod refusals;
mod restart;
mod server;
mod services;
mod shards;
mod starved;
mod stop;
mod tables;
mod targets;
mod telemetry;
mod tenants;
mod timeouts;
mod tls;
mod traffic;
mod traces;
mod translation;
mod tunnels;
mod upgrade;
mod vectors;
mod windows;
