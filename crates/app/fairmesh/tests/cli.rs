//! Runs the real binary as people and programs do. Each test has its own control plane, on a Unix socket in a temporary
//! folder, so tests can run in parallel.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

mod cli {
    pub(crate) mod authorization;
    pub(crate) mod call_graph;
    pub(crate) mod calls;
    pub(crate) mod changes;
    pub(crate) mod check;
    pub(crate) mod config_file;
    pub(crate) mod controllers;
    pub(crate) mod conventions;
    pub(crate) mod cost;
    pub(crate) mod cpu_cost;
    pub(crate) mod dev;
    pub(crate) mod endpoints;
    pub(crate) mod etcd;
    pub(crate) mod federation;
    pub(crate) mod health_checkers;
    pub(crate) mod hosts;
    pub(crate) mod identities;
    pub(crate) mod joining;
    pub(crate) mod keys;
    pub(crate) mod lint;
    pub(crate) mod listeners;
    pub(crate) mod local_users;
    pub(crate) mod membership;
    pub(crate) mod message_conformance;
    pub(crate) mod moves;
    pub(crate) mod pairs;
    pub(crate) mod permissive;
    pub(crate) mod placement;
    pub(crate) mod policy_defaults;
    pub(crate) mod proxies;
    pub(crate) mod readme;
    pub(crate) mod reference;
    pub(crate) mod refusals;
    pub(crate) mod region_drains;
    pub(crate) mod replicas;
    pub(crate) mod reported_calls;
    pub(crate) mod restarts;
    pub(crate) mod retirement;
    pub(crate) mod revocations;
    pub(crate) mod rib;
    pub(crate) mod roles;
    pub(crate) mod routes;
    pub(crate) mod schema;
    pub(crate) mod secrets;
    pub(crate) mod security;
    pub(crate) mod shared_maps;
    pub(crate) mod shells;
    pub(crate) mod sim;
    pub(crate) mod spiffe;
    pub(crate) mod startup;
    pub(crate) mod strict;
    pub(crate) mod support;
    pub(crate) mod tables;
    pub(crate) mod tokens;
    pub(crate) mod top;
    pub(crate) mod trace;
    pub(crate) mod user_rules;
    pub(crate) mod wait;
    pub(crate) mod web;
    pub(crate) mod workload_api;
    pub(crate) mod workloads;
}
