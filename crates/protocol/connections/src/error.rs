use std::io;

use fairmesh_http::{BoxError, h1::Malformed, h2::StreamError};
use fairmesh_wire::transport::{NoIdentity, PlaintextRefused};

use super::attempt_waits::IdleTimeout;

/// Error codes for an exhausted supply of file descriptors, on the machine (`ENFILE`) or in the process (`EMFILE`). The
/// standard library has no `ErrorKind` for them.
const NO_DESCRIPTOR: [i32; 2] = [23, 24];

/// Why a program of this build has no identity.
const NO_TLS: &str = match cfg!(feature = "tls") {
    true => "",
    false => " (this program is built without the feature `tls` of fairmesh-client)",
};

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// No connection could be opened.
    #[error("no connection")]
    Unreachable(#[source] io::Error),
    /// The endpoint accepts only mutual TLS, and this program has no identity.
    #[error("{0}{NO_TLS}")]
    NoIdentity(NoIdentity),
    /// The endpoint speaks plaintext, which is not permitted.
    #[error("{0}")]
    PlaintextRefused(PlaintextRefused),
    /// No connection was opened within the short time that the call could wait. This says nothing about the server.
    #[error("no connection in the time that was left")]
    ConnectTimedOut,
    /// This machine has no descriptor or port left for a connection. This says nothing about the server.
    #[error(
        "this machine has no file descriptor or port left; raise its limits (ulimit -n), or have fewer connections"
    )]
    LocalResources(#[source] io::Error),
    /// The server refused the request without processing it.
    #[error("the server refused the request unprocessed")]
    Refused(#[source] BoxError),
    /// The connection was closing, and the server did not read the request.
    #[error("the connection was closing")]
    Stale(#[source] BoxError),
    /// The connection broke after the request was sent. The server may have processed it.
    #[error("the connection broke")]
    Broken(#[source] BoxError),
    /// No response arrived within the time of the attempt.
    #[error("no response in time")]
    TimedOut,
    /// No progress was made for longer than an idle timeout.
    #[error("nothing moved for {:?}", .0.duration())]
    Idle(IdleTimeout),
    /// The caller's request body failed.
    #[error("the request's body failed")]
    Body(#[source] BoxError),
    /// The server rejected the request as malformed. This says nothing about the server.
    #[error("the server rejected the request")]
    Rejected(#[source] BoxError),
    /// The request cannot be sent in its form.
    #[error("the request cannot be sent")]
    Invalid(#[source] BoxError),
}

/// The connection ended before the first byte of the response.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct Unanswered(pub(crate) io::Error);

impl SendError {
    /// Converts a connect error, attributing it to the server or to this machine.
    pub(super) fn from_connect(error: io::Error) -> Self {
        if let Some(missing) = error.get_ref().and_then(|source| source.downcast_ref::<NoIdentity>()) {
            return Self::NoIdentity(*missing);
        }
        if let Some(refused) = error.get_ref().and_then(|source| source.downcast_ref::<PlaintextRefused>()) {
            return Self::PlaintextRefused(*refused);
        }
        let no_port = error.kind() == io::ErrorKind::AddrNotAvailable;
        let no_descriptor = error.raw_os_error().is_some_and(|code| NO_DESCRIPTOR.contains(&code));
        match no_port || no_descriptor {
            true => Self::LocalResources(error),
            false => Self::Unreachable(error),
        }
    }
}

/// Whether the connection broke because the server violated the protocol, rather than because it ended.
pub fn violates_protocol(error: &BoxError) -> bool {
    error.is::<Malformed>() || error.downcast_ref::<StreamError>().is_some_and(StreamError::is_violation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhausted_local_descriptors_and_ports_are_not_blamed_on_server() {
        for code in NO_DESCRIPTOR {
            let error = SendError::from_connect(io::Error::from_raw_os_error(code));
            assert!(matches!(error, SendError::LocalResources(_)));
        }
        let no_port = io::Error::from(io::ErrorKind::AddrNotAvailable);
        assert!(matches!(SendError::from_connect(no_port), SendError::LocalResources(_)));
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert!(matches!(SendError::from_connect(refused), SendError::Unreachable(_)));
    }
}
