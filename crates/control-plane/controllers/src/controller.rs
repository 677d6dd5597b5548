use std::{error::Error, fmt, future::Future, sync::Arc, time::Duration};

use fairmesh_model::Prefix;
use fairmesh_rib::{Node, Op};
use tokio::{sync::Notify, time::Instant};

/// Why facts cannot be read, or an effect cannot be applied. The message says what to do, or that the next round tries again.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A loop of the control plane: facts in, writes out.
///
/// The runtime clones a controller before its first round and replaces it by that clone after a panic, so that no round starts
/// from half of the state of another one. State that has to outlive a panic is shared by clones.
///
/// A round that misses its deadline is dropped at an `await`. A controller therefore changes its state between two of them
/// completely or not at all.
pub trait Controller: Clone + Send + 'static {
    /// Name in statuses, metrics, options and the log of writes: lower-case words with dashes, unique in a process.
    const NAME: &'static str;
    /// How long a round may take, writes included.
    const DEADLINE: Duration = Duration::from_secs(30);
    /// The longest pause after a failed round. Pauses begin with a second, and double with each failure in a row.
    const LONGEST_PAUSE: Duration = Duration::from_secs(60);
    /// What a round decides from.
    type Facts: Send;
    /// A change of this process or of its files, beside records. The text is for operators: `publish 3 targets in 2 regions`.
    /// [`Infallible`](std::convert::Infallible) for a controller that only writes records.
    type Effect: fmt::Display + Send;

    /// What starts a round.
    fn triggers(&self) -> Triggers;

    /// Reads the facts of a round from the records, and from wherever else this controller looks. Changes nothing.
    ///
    /// # Errors
    /// Why there are none; the round fails, and is repeated after a pause.
    fn read_facts(
        &mut self,
        node: &Node,
        wake: Wake,
    ) -> impl Future<Output = Result<Self::Facts, BoxError>> + Send;

    /// Decides. The decision depends on the facts, the state of the controller and `now` alone: no clock, no randomness, no I/O.
    fn reconcile(&mut self, facts: Self::Facts, now: Now) -> Decision<Self::Effect>;

    /// Applies an effect that [`reconcile`](Self::reconcile) decided, before the records of the round are written.
    ///
    /// # Errors
    /// Why it is not applied. Other effects and writes of the round go on; then the round counts as failed.
    fn apply(&mut self, effect: Self::Effect) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Notes that the records of [`Write::subject`] are written.
    fn written(&mut self, _subject: &str) {}

    /// Notes that the records of [`Write::subject`] are not written: another writer was faster, or the store refused them.
    fn not_written(&mut self, _subject: &str) {}
}

/// What starts a round, beside the start of the process and the retry of a failed round.
#[derive(Clone, Debug, Default)]
pub struct Triggers {
    /// A commit that changes a key below one of these.
    pub prefixes: Vec<Prefix>,
    /// A notification, for what no prefix tells.
    pub notify: Option<Arc<Notify>>,
    /// The time since the last round began, without any change.
    pub interval: Option<Duration>,
    /// The least time between the begins of two rounds. Changes meanwhile start one round together.
    pub min_gap: Duration,
}

/// Why a round is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// There was a commit or a notification since the begin of the last round that succeeded, or no round has succeeded yet.
    Changed,
    /// Nothing has changed; the interval has passed.
    Interval,
}

/// The time at which a round decides.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// By the clock of this process, which never goes back.
    pub at: Instant,
    /// Milliseconds since 1970, for records that others read.
    pub wall_ms: u64,
}

/// What a round decides.
#[derive(Debug)]
pub struct Decision<E> {
    /// Batches of records. Each is written whole or not at all, and none waits for another.
    pub writes: Vec<Write>,
    /// Changes of this process, applied in this order before the writes.
    pub effects: Vec<E>,
    /// What the controller leaves as it is although the facts ask for a change.
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
    /// What the records are about, such as a service.
    pub subject: String,
    /// Why they are written, for the log of writes.
    pub reason: &'static str,
    /// The writes, on condition of the revisions that the facts were read at. At most [`fairmesh_rib::MAX_OPS`].
    pub ops: Vec<Op>,
}

/// A change that a controller refuses to make.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refusal {
    /// What stays as it is, such as a service.
    pub subject: String,
    /// Why, and what to do. The text stays the same as long as the cause does, since each new one is logged.
    pub reason: String,
}
