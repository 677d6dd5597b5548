//! Processes, servers and load shared by the tests.

mod certificates;
mod connection;
mod echo;
pub(crate) mod h2;
mod load;
mod netns;
pub(crate) mod openmetrics;
pub(crate) mod otlp;
mod proxy;
mod raw;
mod serve;
mod world;

pub(crate) use certificates::Authority;
pub(crate) use connection::{Answer, Connection, Manner};
pub(crate) use echo::{Echo, NUMBER, STATUS};
pub(crate) use fairmesh_test_support::{
    PATIENCE, Process, Program, Run, alone, beside_others, eventually_async as until, free_port, is_soak,
    namespaces::path, run, skipped, tool,
};
pub(crate) use load::{Caller, Kind, Load};
pub(crate) use netns::{Machines, THERE};
pub(crate) use proxy::Proxy;
pub(crate) use raw::{RawServer, read_head, read_to_end, say};
pub(crate) use serve::{BURN, Local, Spec};
pub(crate) use world::World;
