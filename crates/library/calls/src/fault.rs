#[cfg(feature = "axum")]
mod into_response;
mod kind;

use std::{error::Error as StdError, fmt, time::Duration};

use fairmesh_http::{
    BoxError,
    h2::{Reason, ResetReason},
};
use http::HeaderMap;
use tonic::Status;

pub use self::kind::{FaultKind, Origin, Retry};
pub(crate) use self::kind::{carried_fault, grpc_code_of};

/// Why a call got no response from its service. Responses of services, good or bad, are not faults.
///
/// The text contains the message and every cause in one line. [`source`](StdError::source) therefore repeats none of
/// them: use [`cause`](Self::cause). Only over tower, where the caller may be a tonic client, the source is a tonic
/// `Status`, from which the client takes the code.
pub struct Fault(Box<FaultState>);

struct FaultState {
    kind: FaultKind,
    origin: Origin,
    retry: Retry,
    status: Status,
    retry_after: Option<Duration>,
    attempts: usize,
    /// Whether `source` contains a status that a tonic client reads.
    is_status_source: bool,
}

impl Fault {
    /// Creates a fault. The message says what happened and what to do.
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        let status = Status::new(kind.code(), message);
        let (origin, retry) = (kind.origin(), kind.retry());
        Self(Box::new(FaultState {
            kind,
            origin,
            retry,
            status,
            retry_after: None,
            attempts: 0,
            is_status_source: false,
        }))
    }

    /// Returns the fault with `source` as its cause.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<BoxError>) -> Self {
        self.0.status.set_source(source.into().into());
        self
    }

    /// Returns the fault in the form for a caller that may be a tonic client.
    #[must_use]
    pub(crate) fn for_tonic(mut self) -> Self {
        self.0.is_status_source = true;
        self
    }

    /// The error that caused the fault, if any.
    pub fn cause(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.status.source()
    }

    /// Returns the fault with `retry`, which says whether a retry is safe.
    #[must_use]
    pub fn with_retry(mut self, retry: Retry) -> Self {
        self.0.retry = retry;
        self
    }

    /// Returns the fault with the time after which a call may succeed.
    #[must_use]
    pub fn with_retry_after(mut self, wait: Duration) -> Self {
        self.0.retry_after = Some(wait);
        self
    }

    /// Returns the fault with the number of attempts made.
    pub(crate) fn after(mut self, attempts: usize) -> Self {
        self.0.attempts = attempts;
        self
    }

    /// Number of attempts of the call.
    pub fn attempts(&self) -> usize {
        self.0.attempts
    }

    /// Time after which a call may succeed, if known.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// The kind of the fault.
    pub fn kind(&self) -> FaultKind {
        self.0.kind
    }

    /// The party that caused the fault.
    pub fn origin(&self) -> Origin {
        self.0.origin
    }

    /// Whether a retry is safe.
    pub fn retry(&self) -> Retry {
        self.0.retry
    }

    /// The gRPC trailers of the fault: `grpc-status` and `grpc-message`.
    pub(crate) fn grpc_headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        // Fails only for metadata, and there is none.
        let _ = self.0.status.add_header(&mut headers);
        headers
    }

    /// Description of what happened.
    pub fn message(&self) -> &str {
        self.0.status.message()
    }
}

impl fmt::Display for Fault {
    /// Writes the message and every cause in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())?;
        let mut written = String::new();
        let mut next = self.0.status.source();
        while let Some(cause) = next {
            let text = cause.to_string();
            // Some errors already quote their cause.
            if !written.contains(&text) {
                write!(f, ": {text}")?;
                written = text;
            }
            next = cause.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fault")
            .field("kind", &self.kind())
            .field("origin", &self.origin())
            .field("retry", &self.retry())
            .field("message", &self.message())
            .field("source", &self.0.status.source())
            .finish()
    }
}

impl ResetReason for Fault {
    /// Reset reason. A call that timed out is no longer needed, which is not an error of the proxy.
    fn reset_reason(&self) -> Reason {
        match self.kind() {
            FaultKind::Deadline => Reason::CANCEL,
            _ => Reason::INTERNAL_ERROR,
        }
    }
}

impl StdError for Fault {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.is_status_source.then_some(&self.0.status as _)
    }
}

/// Converts a fault to a gRPC status, so that handlers can pass it on with `?`.
impl From<Fault> for Status {
    fn from(fault: Fault) -> Self {
        let mut status = Self::new(fault.kind().code(), fault.message());
        status.set_source(std::sync::Arc::new(fault));
        status
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn grpc_client_receives_code_of_fault() {
        let fault =
            || Fault::new(FaultKind::KeyOutside, "no shard holds key 5").caused_by("the map ends at 4");
        assert!(fault().source().is_none(), "its text has all, which reports of errors would repeat");
        assert_eq!(fault().cause().unwrap().to_string(), "the map ends at 4");
        let status = Status::from_error(Box::new(fault().for_tonic()));
        assert_eq!((status.code(), status.message()), (Code::OutOfRange, "no shard holds key 5"));
        let status = Status::from(Fault::new(FaultKind::Loop, "it came back"));
        assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, "it came back"));
        assert!(status.source().is_some_and(|source| source.is::<Fault>()));
    }
}
