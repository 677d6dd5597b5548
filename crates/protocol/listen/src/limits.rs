use std::time::Duration;

#[cfg(feature = "http")]
use hyper_util::{rt::TokioTimer, server::conn::auto};

use crate::descriptor_limit;

/// Listeners get their share of the process's descriptors in eighths.
const PARTS: usize = 8;

/// Limits of the listeners of one purpose.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum of open connections. At the maximum a quiet one is closed for each new one; without a quiet one, new
    /// ones wait unaccepted.
    pub connections: usize,
    /// Eighths of the process's descriptors for connections. The rest is for other listeners, files and outgoing
    /// connections.
    pub descriptors: usize,
    /// Eighths above which quiet connections are closed for new ones, though more would be accepted.
    pub crowded: usize,
    /// Timeout of the preface or headers: of the first request from the accept, of later ones from their first byte.
    pub headers: Duration,
    /// Timeout of a request's body, from its headers.
    pub body: Duration,
    /// Idle timeout of HTTP/1.1 connections between requests; `None`: only limited by the maximum of connections.
    pub idle: Option<Duration>,
    /// Timeout of a peer that reads nothing of its responses; `None`: no limit, and unread responses are not bounded.
    pub stall: Option<Duration>,
}

impl Limits {
    /// For gRPC between processes of the mesh, whose connections are persistent and have keep-alives of their own.
    #[must_use]
    pub const fn calls() -> Self {
        Self {
            connections: 65_536,
            descriptors: 5,
            crowded: 5,
            headers: Duration::from_secs(10),
            body: Duration::from_secs(30),
            idle: None,
            stall: Some(Duration::from_secs(30)),
        }
    }

    /// For HTTP of operators and tools, over short-lived connections.
    #[must_use]
    pub const fn pages() -> Self {
        Self {
            connections: 1_024,
            descriptors: 1,
            crowded: 1,
            idle: Some(Duration::from_secs(75)),
            ..Self::calls()
        }
    }

    /// For the server of a program: limited by its descriptors only, of which it may need another one for each request.
    #[must_use]
    pub const fn program() -> Self {
        Self { connections: usize::MAX, descriptors: 7, crowded: 4, stall: None, ..Self::calls() }
    }

    /// With another maximum of connections, at least one.
    #[must_use]
    pub const fn with_connections(self, connections: usize) -> Self {
        Self { connections: if connections == 0 { 1 } else { connections }, ..self }
    }

    /// The number of connections above which quiet ones are closed, and the maximum, given the process's descriptors.
    pub(crate) fn bounds(&self) -> (usize, usize) {
        let descriptors = descriptor_limit();
        let of = |eighths: usize| (descriptors / PARTS * eighths).min(self.connections).max(1);
        (of(self.crowded), of(self.descriptors))
    }
}

/// HTTP/2 settings of a server for calls with messages of a few megabytes at most.
#[derive(Clone, Copy, Debug)]
pub struct Http2Settings {
    /// Maximum of concurrent streams on one connection.
    pub streams: u32,
}

impl Http2Settings {
    /// Interval of keep-alive pings on a quiet connection, and timeout of the response.
    pub const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));
    /// Flow-control window of a stream, in bytes: 4 MB take 32 round trips.
    pub const STREAM_WINDOW: u32 = 128 * 1024;
    /// Flow-control window of a connection, in bytes: more than requests that wait for memory can hold, so that they
    /// never block those that have it.
    pub const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
    /// Maximum of bytes of a request's headers.
    pub const HEADERS: u32 = 16 * 1024;
    /// Maximum of streams opened and reset before they were accepted (rapid reset, CVE-2023-44487).
    pub const RESETS: usize = 64;

    /// Applies all settings.
    #[cfg(feature = "http")]
    pub fn apply<E>(self, builder: &mut auto::Builder<E>) {
        let (interval, timeout) = Self::KEEP_ALIVE;
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(interval)
            .keep_alive_timeout(timeout)
            .initial_stream_window_size(Self::STREAM_WINDOW)
            .initial_connection_window_size(Self::CONNECTION_WINDOW)
            .max_concurrent_streams(self.streams)
            .max_header_list_size(Self::HEADERS)
            .max_pending_accept_reset_streams(Self::RESETS);
    }
}
