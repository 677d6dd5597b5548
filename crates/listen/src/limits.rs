use std::time::Duration;

use hyper_util::{rt::TokioTimer, server::conn::auto};

use crate::descriptor_limit;

/// The parts that the descriptors of a process are divided into.
const PARTS: usize = 8;

/// Bounds of the listeners of one purpose.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at one time. Where there are as many, a quiet one is closed for each new one; where none is quiet, new ones wait
    /// unaccepted.
    pub connections: usize,
    /// The eighths of the descriptors of the process that connections may take. The rest is for other listeners, for files and for
    /// connections to others.
    pub descriptors: usize,
    /// The eighths from which on quiet connections are closed for new ones, though more would be accepted.
    pub crowded: usize,
    /// How long the preface or headers may take: of the first request from when the connection was accepted, of others from their
    /// first byte.
    pub headers: Duration,
    /// How long the body of a request may take, from its headers.
    pub body: Duration,
    /// How long a connection of HTTP/1.1 may be idle between requests; as long as there is room, where there is none.
    pub idle: Option<Duration>,
    /// How long a peer may take nothing of what it is sent; where there is none, for ever, and responses that are not taken are not
    /// bounded.
    pub stall: Option<Duration>,
}

impl Limits {
    /// gRPC between processes of the mesh, which keep their connections open and have keep-alives of their own.
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

    /// HTTP for operators and tools, over connections that are opened as they are needed.
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

    /// The server of a program: no bound but its descriptors, of which it may need one more for each request.
    #[must_use]
    pub const fn program() -> Self {
        Self { connections: usize::MAX, descriptors: 7, crowded: 4, stall: None, ..Self::calls() }
    }

    /// With another bound on connections, at least one.
    #[must_use]
    pub const fn with_connections(self, connections: usize) -> Self {
        Self { connections: if connections == 0 { 1 } else { connections }, ..self }
    }

    /// How many connections there are from which on quiet ones are closed, and how many there may be, by what the process may open.
    pub(crate) fn bounds(&self) -> (usize, usize) {
        let descriptors = descriptor_limit();
        let of = |eighths: usize| (descriptors / PARTS * eighths).min(self.connections).max(1);
        (of(self.crowded), of(self.descriptors))
    }
}

/// HTTP/2 of a server whose requests are calls with messages of a few megabytes at most.
#[derive(Clone, Copy, Debug)]
pub struct Http2 {
    /// Streams at one time on one connection.
    pub streams: u32,
}

impl Http2 {
    /// How often a quiet connection is probed, and how long the response may take.
    pub const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));
    /// What a peer may send ahead on one stream, in bytes: 4 MB take 32 round trips.
    pub const STREAM_WINDOW: u32 = 128 * 1024;
    /// What a peer may send ahead on all streams, in bytes: more than requests that wait for memory can hold, so that those which
    /// have it are never held up by them.
    pub const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
    /// The most bytes of the headers of a request.
    pub const HEADERS: u32 = 16 * 1024;
    /// Streams that a peer may open and reset before they are looked at (CVE-2023-44487).
    pub const RESETS: usize = 64;

    /// Sets all of it.
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
