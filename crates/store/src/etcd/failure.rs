//! What became of a call to etcd, and what its refusals mean to people.

use std::error::Error;

use tonic::{Code, ConnectError, Status};

use crate::{Place, StoreError, WriteError};

/// Why a call has no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// No member took it: nothing was carried out, and another member may take it.
    Away(String),
    /// It was sent and no verdict came back.
    Unknown(String),
    /// The token that came with it is not good, any more or yet: nothing was carried out, a new one may be.
    Token(String),
    /// Etcd refused it: nothing was carried out, nor would be elsewhere.
    Refused(Status),
    /// What is there is not what was opened.
    Replaced,
}

/// What [`Failure::Replaced`] means to people.
const REPLACED: &str = "another store, or none, took its place in etcd; start the process again";

impl Failure {
    /// Reads a status as what it says of the call.
    pub(super) fn of(status: Status) -> Self {
        let message = status.message();
        if before_sending(&status) {
            return Self::Away(root_cause(&status));
        }
        // Checked before etcd proposes anything, or again when it carries a proposal out.
        if message.contains("invalid auth token") || message.contains("revision of auth store is old") {
            return Self::Token(message.into());
        }
        // A member without leader says so before it proposes anything.
        if message == "etcdserver: no leader" || message == "etcdserver: server stopped" {
            return Self::Away(message.into());
        }
        match status.code() {
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown | Code::Internal => {
                Self::Unknown(root_cause(&status))
            }
            _ => Self::Refused(status),
        }
    }

    /// The same of a call that only read: nothing was to be carried out.
    pub(super) fn unsent(self) -> Self {
        match self {
            Self::Unknown(problem) => Self::Away(problem),
            other => other,
        }
    }

    /// For who wanted to read.
    pub(super) fn reading(self, place: &Place) -> StoreError {
        let place = place.clone();
        match self {
            Self::Away(problem) | Self::Unknown(problem) => StoreError::Away { place, problem },
            Self::Token(problem) => StoreError::Refused { place, problem: denied(&problem) },
            Self::Refused(status) => StoreError::Refused { place, problem: refusal(&status) },
            Self::Replaced => StoreError::Refused { place, problem: REPLACED.into() },
        }
    }

    /// For who wanted to write a transaction of so many operations and bytes.
    pub(super) fn writing(self, place: &Place, ops: usize, bytes: usize) -> WriteError {
        let place = place.clone();
        match self {
            Self::Away(problem) => WriteError::Away { place, problem },
            Self::Unknown(problem) => WriteError::Unknown { place, problem },
            Self::Token(problem) => WriteError::Refused { place, problem: denied(&problem) },
            Self::Replaced => WriteError::Refused { place, problem: REPLACED.into() },
            Self::Refused(status) if status.message() == "etcdserver: too many requests" => {
                WriteError::Overloaded { place }
            }
            Self::Refused(status) => {
                let problem = limit(&status, ops, bytes).unwrap_or_else(|| refusal(&status));
                WriteError::Refused { place, problem }
            }
        }
    }

    /// In a few words, for the log.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Away(problem) | Self::Unknown(problem) | Self::Token(problem) => problem.clone(),
            Self::Refused(status) => refusal(status),
            Self::Replaced => REPLACED.into(),
        }
    }
}

/// Whether a call failed while its connection was made.
fn before_sending(status: &Status) -> bool {
    causes(status).any(|cause| cause.is::<ConnectError>())
}

/// The innermost cause, which names what the others only wrap.
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

/// The bound of etcd that a transaction exceeds, and how to raise it.
fn limit(status: &Status, ops: usize, bytes: usize) -> Option<String> {
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

/// Any other refusal.
fn refusal(status: &Status) -> String {
    let message = status.message();
    if message.contains("database space exceeded") {
        return "etcd's database is full; compact and defragment it, raise --quota-backend-bytes, and lift the alarm \
                with 'etcdctl alarm disarm'"
            .into();
    }
    match status.code() {
        Code::PermissionDenied | Code::Unauthenticated => denied(message),
        _ if ["user name", "user ID", "authentication"].iter().any(|word| message.contains(word)) => {
            denied(message)
        }
        _ => format!("etcd refuses ({message})"),
    }
}

fn denied(message: &str) -> String {
    format!(
        "etcd denies access ({message}); check --etcd-user and FAIRMESH_ETCD_PASSWORD, and that this user may read and \
         write every key below the root"
    )
}
