use std::time::Duration;

#[cfg(feature = "http")]
use hyper_util::{rt::TokioTimer, server::conn::auto};

use crate::descriptor_limit;

/// Number of parts into which the process's descriptors are divided: limits are in eighths.
const PARTS: usize = 8;

/// Limits of all listeners that serve one purpose.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of open connections. At the maximum, each new connection displaces a quiet one; if none is quiet,
    /// new connections wait unaccepted.
    pub connections: usize,
    /// Eighths of the process's descriptors available for connections. The rest is for other listeners, files and
    /// outgoing connections.
    pub descriptors: usize,
    /// Eighths of the descriptors above which quiet connections are closed for new ones, although more would be
    /// accepted.
    pub crowded: usize,
    /// Timeout of the preface or headers. It runs from the accept for the first request, and from the first byte for
    /// later ones.
    pub headers: Duration,
    /// Timeout of a request's body, counted from its headers.
    pub body: Duration,
    /// Idle timeout of HTTP/1.1 connections between requests; `None` limits them only by `connections`.
    pub idle: Option<Duration>,
    /// Timeout of a peer that reads nothing of its responses. With `None`, neither this time nor unread responses are
    /// limited.
    pub stall: Option<Duration>,
}

impl Limits {
    /// Limits for gRPC between processes of the mesh, whose connections are persistent and have their own keep-alives.
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

    /// Limits for the HTTP pages that operators and tools read over short-lived connections.
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

    /// Limits for a program's server: only its descriptors are limited, because each request may need another one.
    #[must_use]
    pub const fn program() -> Self {
        Self { connections: usize::MAX, descriptors: 7, crowded: 4, stall: None, ..Self::calls() }
    }

    /// Sets another maximum number of connections, at least one.
    #[must_use]
    pub const fn with_connections(self, connections: usize) -> Self {
        Self { connections: if connections == 0 { 1 } else { connections }, ..self }
    }

    /// Returns the number of connections above which quiet ones are closed, and the maximum, given the process's
    /// descriptors.
    pub(crate) fn bounds(&self) -> (usize, usize) {
        let descriptors = descriptor_limit();
        let of = |eighths: usize| (descriptors / PARTS * eighths).min(self.connections).max(1);
        (of(self.crowded), of(self.descriptors))
    }
}

/// HTTP/2 settings of a server for calls with messages of up to a few megabytes.
#[derive(Clone, Copy, Debug)]
pub struct Http2Settings {
    /// Maximum number of concurrent streams per connection.
    pub streams: u32,
}

impl Http2Settings {
    /// Interval of keep-alive PINGs on a quiet connection, and timeout of their acknowledgement.
    pub const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));
    /// Flow-control window of a stream, in bytes. A 4 MB message takes 32 round trips.
    pub const STREAM_WINDOW: u32 = 128 * 1024;
    /// Flow-control window of a connection, in bytes. It exceeds the bytes that requests waiting for memory can hold,
    /// so that these never block requests that have memory.
    pub const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
    /// Maximum size of a request's headers, in bytes.
    pub const HEADERS: u32 = 16 * 1024;
    /// Maximum number of streams opened and reset before they were accepted (rapid reset, CVE-2023-44487).
    pub const RESETS: usize = 64;

    /// Applies all settings to a server builder.
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
