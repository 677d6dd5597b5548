use std::time::Duration;

/// What a probe speaks. Each needs TCP; the order is that in which a fault is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// A connection.
    Tcp,
    /// A request of HTTP/1.1.
    Http1,
    /// A request of HTTP/2, with prior knowledge.
    Http2,
    /// A unary call of gRPC.
    Grpc,
    /// An upgrade, and a ping that is answered.
    WebSocket,
}

impl Protocol {
    /// All, in order.
    pub const ALL: [Self; 5] = [Self::Tcp, Self::Http1, Self::Http2, Self::Grpc, Self::WebSocket];

    /// Its name in tables, JSON and labels.
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

/// The outcomes of one probe by protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes([Outcome; Protocol::ALL.len()]);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Outcome {
    /// Without TCP nothing else is tried.
    #[default]
    NotTried,
    Passed(Duration),
    Failed,
}

impl Outcomes {
    /// Notes that a protocol passed, with the time that it took.
    pub fn pass(&mut self, protocol: Protocol, took: Duration) {
        self.0[protocol as usize] = Outcome::Passed(took);
    }

    /// Notes that a protocol failed.
    pub fn fail(&mut self, protocol: Protocol) {
        self.0[protocol as usize] = Outcome::Failed;
    }

    /// The time that a protocol took, if it passed.
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

    /// The first protocol that failed: the layer of the fault.
    pub fn fault(&self) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|protocol| self.has_failed(*protocol))
    }

    /// Whether nothing was tried.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|outcome| *outcome == Outcome::NotTried)
    }
}
