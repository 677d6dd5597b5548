//! Errors of calls to etcd and their messages.

use std::error::Error;

use tonic::{Code, ConnectError, Status};

use crate::{StoreError, StoreLocation, WriteError};

/// Why a call failed.
#[derive(Debug)]
pub(super) enum CallError {
    /// No member accepted the call: nothing was applied, and another member may accept it.
    Unavailable(String),
    /// The call was sent, but no response came: the outcome is unknown.
    Unknown(String),
    /// The token is invalid or not valid yet: nothing was applied, and a new token may be valid.
    InvalidToken(String),
    /// Etcd refused the call: nothing was applied, and every member would refuse it.
    Refused(Status),
    /// The store was replaced after it was opened.
    StoreReplaced,
}

/// Text of [`CallError::StoreReplaced`].
const STORE_REPLACED: &str = "another store, or none, is below this root now; start the process again";

impl CallError {
    /// Maps a gRPC status to a [`CallError`].
    pub(super) fn from_status(status: Status) -> Self {
        let message = status.message();
        if is_connect_error(&status) {
            return Self::Unavailable(root_cause(&status));
        }
        // Etcd checks the token before it proposes anything, and again when it applies a proposal.
        if message.contains("invalid auth token") || message.contains("revision of auth store is old") {
            return Self::InvalidToken(message.into());
        }
        // A member without a leader returns this before it proposes anything.
        if message == "etcdserver: no leader" || message == "etcdserver: server stopped" {
            return Self::Unavailable(message.into());
        }
        match status.code() {
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown | Code::Internal => {
                Self::Unknown(root_cause(&status))
            }
            _ => Self::Refused(status),
        }
    }

    /// Maps an unknown outcome to unavailable. For reads only, which apply nothing.
    pub(super) fn into_unavailable(self) -> Self {
        match self {
            Self::Unknown(problem) => Self::Unavailable(problem),
            other => other,
        }
    }

    /// Whether etcd has no space for writes.
    pub(super) fn is_full(&self) -> bool {
        matches!(self, Self::Refused(status) if is_full(status))
    }

    /// Returns the error of a read.
    pub(super) fn into_store_error(self, location: &StoreLocation) -> StoreError {
        let location = location.clone();
        match self {
            Self::Unavailable(problem) | Self::Unknown(problem) => {
                StoreError::Unavailable { location, problem }
            }
            Self::InvalidToken(problem) => StoreError::Refused { location, problem: access_denied(&problem) },
            Self::Refused(status) => StoreError::Refused { location, problem: refusal_message(&status) },
            Self::StoreReplaced => StoreError::Refused { location, problem: STORE_REPLACED.into() },
        }
    }

    /// Returns the error of a write with `ops` operations and `bytes` bytes.
    pub(super) fn into_write_error(self, location: &StoreLocation, ops: usize, bytes: usize) -> WriteError {
        let location = location.clone();
        match self {
            Self::Unavailable(problem) => WriteError::Unavailable { location, problem },
            Self::Unknown(problem) => WriteError::Unknown { location, problem },
            Self::InvalidToken(problem) => WriteError::Refused { location, problem: access_denied(&problem) },
            Self::StoreReplaced => WriteError::Refused { location, problem: STORE_REPLACED.into() },
            Self::Refused(status) if status.message() == "etcdserver: too many requests" => {
                WriteError::Overloaded { location }
            }
            Self::Refused(status) => {
                let problem = exceeded_limit(&status, ops, bytes).unwrap_or_else(|| refusal_message(&status));
                WriteError::Refused { location, problem }
            }
        }
    }

    /// Returns a short message for the log.
    pub(super) fn message(&self) -> String {
        match self {
            Self::Unavailable(problem) | Self::Unknown(problem) | Self::InvalidToken(problem) => {
                problem.clone()
            }
            Self::Refused(status) => refusal_message(status),
            Self::StoreReplaced => STORE_REPLACED.into(),
        }
    }
}

/// Whether the connection could not be established.
fn is_connect_error(status: &Status) -> bool {
    causes(status).any(|cause| cause.is::<ConnectError>())
}

/// Returns the innermost cause; the outer causes only wrap it.
fn root_cause(status: &Status) -> String {
    causes(status).last().map_or_else(|| status.message().to_owned(), ToString::to_string)
}

fn causes(status: &Status) -> impl Iterator<Item = &(dyn Error + 'static)> {
    let mut next = status.source();
    std::iter::from_fn(move || {
        let cause = next?;
        next = cause.source();
        Some(cause)
    })
}

/// Names the limit of etcd that a transaction exceeds, and how to raise it.
fn exceeded_limit(status: &Status, ops: usize, bytes: usize) -> Option<String> {
    let message = status.message();
    if message.contains("too many operations in txn request") {
        return Some(format!(
            "etcd takes fewer than the {ops} operations of this batch; start every member with --max-txn-ops={}, or \
             write less at once",
            super::MAX_TXN_OPS.max(ops)
        ));
    }
    let large = message.contains("request is too large") || message.contains("larger than max");
    large.then(|| {
        format!(
            "etcd takes fewer than the {bytes} bytes of this batch; start every member with --max-request-bytes={}, or \
             write less at once",
            super::MAX_REQUEST_BYTES
        )
    })
}

fn is_full(status: &Status) -> bool {
    status.message().contains("database space exceeded")
}

/// Returns the message for any other refusal.
fn refusal_message(status: &Status) -> String {
    let message = status.message();
    if is_full(status) {
        return "etcd's database is full; compact and defragment it, raise --quota-backend-bytes, and lift the alarm \
                with 'etcdctl alarm disarm'"
            .into();
    }
    match status.code() {
        Code::PermissionDenied | Code::Unauthenticated => access_denied(message),
        _ if ["user name", "user ID", "authentication"].iter().any(|word| message.contains(word)) => {
            access_denied(message)
        }
        _ => format!("etcd refused the call ({message})"),
    }
}

fn access_denied(message: &str) -> String {
    format!(
        "etcd denies access ({message}); check --etcd-user and FAIRMESH_ETCD_PASSWORD, and that this user may read and \
         write every key below the root"
    )
}
