/// Side of a call that recorded a span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpanKind {
    /// Neither side, for example a step within a program.
    #[default]
    Internal,
    /// Server side: the span covers the whole call.
    Server,
    /// Caller side: the span covers one attempt.
    Client,
}

/// A span, with the fields that are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TracedSpan {
    /// Trace id; not zero.
    pub trace: u128,
    /// Span id within the trace; not zero.
    pub id: u64,
    /// Id of the parent span; 0 if there is none.
    pub parent: u64,
    /// Side of the call.
    pub kind: SpanKind,
    /// Called service, as `tenant/service`, or a name that the program chose.
    pub service: String,
    /// Service of the process that exported the span.
    pub process: String,
    /// Name of the span.
    pub name: String,
    /// Start of the span, in nanoseconds since 1970.
    pub start_ns: u64,
    /// End of the span, in nanoseconds since 1970; not before the start.
    pub end_ns: u64,
    /// HTTP status; 0 if there is none.
    pub status: u32,
    /// Why the span failed, as a message or an error type; empty if it did not fail.
    pub error: String,
    /// Instance that served the call.
    pub instance: String,
    /// Address of the instance, or the host.
    pub address: String,
    /// Region of the instance.
    pub region: String,
    /// Revision of the routing information base with which the call was routed; 0 if unknown.
    pub revision: u64,
}

impl TracedSpan {
    /// Returns the duration of the span, in nanoseconds.
    pub fn took_ns(&self) -> u64 {
        self.end_ns - self.start_ns
    }

    /// Whether the span failed.
    pub fn is_failed(&self) -> bool {
        !self.error.is_empty()
    }

    /// Returns the approximate size of the span, in bytes.
    pub(crate) fn size(&self) -> usize {
        let texts = [
            &self.service,
            &self.process,
            &self.name,
            &self.error,
            &self.instance,
            &self.address,
            &self.region,
        ];
        size_of::<Self>() + texts.into_iter().map(String::capacity).sum::<usize>()
    }
}
