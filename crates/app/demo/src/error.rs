//! Errors of the demo.

use std::io;

/// Reason why the demo failed.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// A component failed to start or did not do its part; the message quotes its log.
    #[error("{0}")]
    Fleet(String),
    /// An error of the operating system.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The reader of the output closed it, as `head` does. This is not a fault.
    #[error("the reader of the output has gone")]
    ReaderGone,
    /// Unexpected failures of calls.
    #[error("{0} calls failed unexpectedly; the table above has phases and reasons")]
    CallsFailed(u64),
    /// Programs reached other endpoints than predicted, or none.
    #[error(
        "{0} calls of programs failed or reached other endpoints than 'fairmesh explain' predicts; see what is above"
    )]
    ProgramsDiffer(u64),
    /// Callers and servers counted different numbers of calls.
    #[error("callers and servers differ in what they counted of these pairs: {0}; see the table above")]
    CountsDiffer(String),
    /// A connection was plaintext, or a process did not prove its identity.
    #[error("the mesh is not secure: {0}")]
    NotSecure(String),
}
