use std::time::Duration;

/// Protocol of a probe. All need TCP; they are ordered by layer, the order in which a fault is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// A TCP connection.
    Tcp,
    /// An HTTP/1.1 request.
    Http1,
    /// An HTTP/2 request with prior knowledge.
    Http2,
    /// A unary gRPC call.
    Grpc,
    /// A WebSocket upgrade, and a ping that is answered.
    WebSocket,
}

impl Protocol {
    /// All variants, in order.
    pub const ALL: [Self; 5] = [Self::Tcp, Self::Http1, Self::Http2, Self::Grpc, Self::WebSocket];

    /// Name in tables, JSON and labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Http1 => "http1",
            Self::Http2 => "http2",
            Self::Grpc => "grpc",
            Self::WebSocket => "websocket",
        }
    }
}

/// Outcomes of one probe by protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes([Outcome; Protocol::ALL.len()]);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Outcome {
    /// Not tried, since TCP failed.
    #[default]
    NotTried,
    Passed(Duration),
    Failed,
}

impl Outcomes {
    /// Records that a protocol succeeded, and its duration.
    pub fn pass(&mut self, protocol: Protocol, took: Duration) {
        self.0[protocol as usize] = Outcome::Passed(took);
    }

    /// Records that a protocol failed.
    pub fn fail(&mut self, protocol: Protocol) {
        self.0[protocol as usize] = Outcome::Failed;
    }

    /// Duration of a protocol's probe, if it succeeded.
    pub fn took(&self, protocol: Protocol) -> Option<Duration> {
        match self.0[protocol as usize] {
            Outcome::Passed(took) => Some(took),
            Outcome::Failed | Outcome::NotTried => None,
        }
    }

    /// Whether a protocol failed.
    pub fn has_failed(&self, protocol: Protocol) -> bool {
        self.0[protocol as usize] == Outcome::Failed
    }

    /// The first protocol that failed, which is the layer of the fault.
    pub fn fault(&self) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|protocol| self.has_failed(*protocol))
    }

    /// Whether no protocol was tried.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|outcome| *outcome == Outcome::NotTried)
    }
}
