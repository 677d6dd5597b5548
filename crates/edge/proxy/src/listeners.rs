//! The listeners of a proxy: their configuration, and the server of each kind's connections.

pub(crate) mod acceptor;
pub(crate) mod listener_config;
