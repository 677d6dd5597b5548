use std::{error::Error, fmt, future::Future, sync::Arc, time::Duration};

use fairmesh_model::Prefix;
use fairmesh_rib::{Node, Op};
use tokio::{sync::Notify, time::Instant};

/// Why facts cannot be read or an effect cannot be applied. The message tells operators what to do, or that
/// the next round tries again.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A loop of the control plane that reads facts and decides writes.
///
/// The runtime clones a controller before its first round, and replaces it by the clone after a panic, so
/// that no round starts from a half-changed state. State that must survive a panic has to be shared by
/// clones.
///
/// A round that misses its deadline is dropped at an `await`. Between two awaits a controller must therefore
/// change its state completely or not at all.
pub trait Controller: Clone + Send + 'static {
    /// Name in statuses, metrics, options and the audit log: lower-case words with dashes, unique in a process.
    const NAME: &'static str;
    /// Time limit of a round, including writes.
    const DEADLINE: Duration = Duration::from_secs(30);
    /// Maximum pause after a failed round. Pauses begin with a second, and double with each consecutive
    /// failure.
    const LONGEST_PAUSE: Duration = Duration::from_secs(60);
    /// The input of a round's decision.
    type Facts: Send;
    /// A change of this process or its files, other than records. Its text is for operators, for example
    /// `publish 3 targets in 2 regions`. [`Infallible`](std::convert::Infallible) for a controller that only
    /// writes records.
    type Effect: fmt::Display + Send;

    /// The events that start a round.
    fn triggers(&self) -> Triggers;

    /// Reads the facts for a round from the records and other sources. Must not change anything.
    ///
    /// # Errors
    /// The reason why the facts cannot be read. The round fails and is repeated after a pause.
    fn read_facts(
        &mut self,
        node: &Node,
        wake: Wake,
    ) -> impl Future<Output = Result<Self::Facts, BoxError>> + Send;

    /// Decides from the facts, the controller's state and `now` alone, without clock, randomness or I/O.
    fn reconcile(&mut self, facts: Self::Facts, now: Now) -> Decision<Self::Effect>;

    /// Applies an effect decided by [`reconcile`](Self::reconcile), before the round's records are written.
    ///
    /// # Errors
    /// The reason why the effect cannot be applied. Other effects and writes of the round continue; the round
    /// then counts as failed.
    fn apply(&mut self, effect: Self::Effect) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Called when the records of the write with this [`Write::subject`] have been written.
    fn written(&mut self, _subject: &str) {}

    /// Called if the records of the write with this [`Write::subject`] were not written, because another writer was
    /// faster or the store refused them.
    fn not_written(&mut self, _subject: &str) {}
}

/// Triggers of a round, in addition to the start of the process and the retry of a failed round.
#[derive(Clone, Debug, Default)]
pub struct Triggers {
    /// Commits below one of these prefixes.
    pub prefixes: Vec<Prefix>,
    /// A notification about changes that no prefix covers.
    pub notify: Option<Arc<Notify>>,
    /// Maximum time between the starts of two rounds: a round starts after it even without a change.
    pub interval: Option<Duration>,
    /// Minimum time between the starts of two rounds. Changes in between share one round.
    pub min_gap: Duration,
}

/// Why a round starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// A commit or notification arrived since the start of the last successful round, or no round has succeeded yet.
    Changed,
    /// Nothing changed, but the interval has passed.
    Interval,
}

/// The time at which a round decides.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Time on this process's monotonic clock.
    pub at: Instant,
    /// Milliseconds since 1970, for records that other processes read.
    pub wall_ms: u64,
}

/// Decision of a round.
#[derive(Debug)]
pub struct Decision<E> {
    /// Batches of records. Each is written whole or not at all, independently of the others.
    pub writes: Vec<Write>,
    /// Changes of this process, applied in this order before the records are written.
    pub effects: Vec<E>,
    /// Changes that the facts require but the controller refuses.
    pub refused: Vec<Refusal>,
}

impl<E> Default for Decision<E> {
    fn default() -> Self {
        Self { writes: Vec::new(), effects: Vec::new(), refused: Vec::new() }
    }
}

/// A batch of records.
#[derive(Clone, Debug)]
pub struct Write {
    /// Subject of the records, such as a service.
    pub subject: String,
    /// Reason of the write, for the audit log.
    pub reason: &'static str,
    /// The operations, conditional on the revisions of the facts. At most [`fairmesh_rib::MAX_OPS`].
    pub ops: Vec<Op>,
}

/// A change that a controller refuses to make.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refusal {
    /// The object that stays unchanged, such as a service.
    pub subject: String,
    /// The reason and the remedy. The text must not change as long as the cause is the same, since each new
    /// text is logged.
    pub reason: String,
}
