//! The listeners of a proxy: what they are configured as, and who serves the connections of each kind.

pub(crate) mod acceptor;
pub(crate) mod listener_config;
