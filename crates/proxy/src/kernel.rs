//! Connections that eBPF programs redirect to a listener `kernel:IP:PORT`.

pub(crate) mod redirected;
