//! The listeners of a proxy: their configuration, and how connections of each kind are served.

pub(crate) mod acceptor;
pub(crate) mod listener_config;
