/// Which side of a call a span is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpanKind {
    /// Neither, such as a step within a program.
    #[default]
    Internal,
    /// A server's: the whole call.
    Server,
    /// A caller's: one attempt.
    Client,
}

/// A span, with what is shown of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TracedSpan {
    /// The trace; not zero.
    pub trace: u128,
    /// Its own number within the trace; not zero.
    pub id: u64,
    /// The span that it is part of; 0: none.
    pub parent: u64,
    /// The side.
    pub kind: SpanKind,
    /// The service that is called, as `tenant/service`, or the name that a program gives itself.
    pub service: String,
    /// The process that exports it: the service that it stands for.
    pub process: String,
    /// Its name.
    pub name: String,
    /// When it began, in nanoseconds since 1970.
    pub start_ns: u64,
    /// When it ended, no earlier.
    pub end_ns: u64,
    /// The status of HTTP; 0: none.
    pub status: u32,
    /// Why it failed, in words or as a kind; empty if it did not.
    pub error: String,
    /// The instance that served it.
    pub instance: String,
    /// The address of that instance, or the host.
    pub address: String,
    /// The region of that instance.
    pub region: String,
    /// The revision of the routing information base by which it was decided; 0: not known.
    pub revision: u64,
}

impl TracedSpan {
    /// How long it took, in nanoseconds.
    pub fn took_ns(&self) -> u64 {
        self.end_ns - self.start_ns
    }

    /// Whether it failed.
    pub fn is_failed(&self) -> bool {
        !self.error.is_empty()
    }

    /// Bytes that it takes, as far as they are known.
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
