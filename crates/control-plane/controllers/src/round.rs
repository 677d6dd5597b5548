use std::{sync::Arc, time::Duration};

use fairmesh_model::Revision;
use fairmesh_rib::{Batch, Conflict};
use fairmesh_store::{
    Store, WriteError,
    write_author::{saying, scope},
};
use tokio::task::JoinSet;

use crate::{BoxError, Write};

/// Maximum number of a round's batches that are written concurrently.
const MAX_WRITES: usize = 16;

/// Why a round was not completed.
#[derive(Debug, thiserror::Error)]
pub enum RoundError {
    /// The facts could not be read.
    #[error("cannot read the facts: {0}")]
    Facts(BoxError),
    /// An effect could not be applied.
    #[error("cannot {effect}: {problem}")]
    Effect {
        /// The effect.
        effect: String,
        /// The reason and the remedy.
        problem: BoxError,
    },
    /// A batch was not written.
    #[error("cannot write {subject}: {problem}")]
    Write {
        /// Subject of the batch.
        subject: String,
        /// The reason and the remedy.
        problem: WriteError,
    },
    /// Another writer was faster. The next round starts after that write.
    #[error("{0}")]
    Conflict(Conflict),
    /// This control plane does not hold the writer lease of the store.
    #[error(
        "this control plane does not hold the writer lease of its store; another one may have taken over"
    )]
    WithoutLease,
    /// The round missed its deadline.
    #[error("the round took longer than {0:?}")]
    Overdue(Duration),
    /// The controller panicked.
    #[error("the controller panicked, which is a bug: {0}")]
    Panicked(String),
}

impl RoundError {
    /// Whether the round counts as failed. A conflict or a missing lease is normal; the next round follows
    /// without a pause.
    pub fn is_failure(&self) -> bool {
        !matches!(self, Self::Conflict(_) | Self::WithoutLease)
    }
}

/// Writes batches in the name of a controller, several at a time, independently of each other. Calls
/// `outcome` with the subject of each batch, and the number of its records if it was written. If dropped at
/// the deadline of a round, no longer waits for writes; a write in progress still completes, with its entry
/// in the audit log.
///
/// # Errors
/// The last failure of a batch; if none failed, the last conflict.
pub(crate) async fn write_all(
    store: &Arc<dyn Store>,
    controller: &'static str,
    writes: Vec<Write>,
    mut outcome: impl FnMut(&str, Option<usize>),
) -> Result<(), RoundError> {
    let (mut pending, mut writing) = (writes.into_iter(), JoinSet::new());
    let mut result = Ok(());
    loop {
        while writing.len() < MAX_WRITES
            && let Some(write) = pending.next()
        {
            // Spawned separately, because dropping the set aborts its own tasks.
            writing.spawn(tokio::spawn(write_one(Arc::clone(store), controller, write)));
        }
        let Some(ended) = writing.join_next().await else { return result };
        match ended.and_then(|written| written) {
            Ok((subject, Ok((_, ops)))) => outcome(&subject, Some(ops)),
            Ok((subject, Err(problem))) => {
                outcome(&subject, None);
                match problem {
                    WriteError::Conflict(conflict) if result.is_ok() => {
                        result = Err(RoundError::Conflict(conflict));
                    }
                    WriteError::Conflict(_) => {}
                    problem => result = Err(RoundError::Write { subject, problem }),
                }
            }
            Err(panicked) => result = Err(RoundError::Panicked(panicked.to_string())),
        }
    }
}

async fn write_one(
    store: Arc<dyn Store>,
    controller: &'static str,
    Write { subject, reason, ops }: Write,
) -> (String, Result<(Revision, usize), WriteError>) {
    let count = ops.len();
    // The audit log counts writes made by a program under the part of the author before `for`.
    let author = Some(format!("control plane for controller {controller}").into());
    let written = scope(author, saying(reason.into(), store.write(Batch { ops }))).await;
    (subject, written.map(|revision| (revision, count)))
}
