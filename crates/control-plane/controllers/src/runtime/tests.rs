use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    mpsc,
};

use fairmesh_model::{Prefix, Revision, StoreId};
use fairmesh_rib::{Batch, Commit, Expect, Op};
use fairmesh_store::{
    BoxFuture, Commits, StoreError, StoreLocation, StoreSnapshot, WriteError, write_author,
};
use tokio::{sync::Notify, time::sleep};

use super::*;
use crate::{BoxError, ControllerStatus, Decision, Refusal, Triggers, Write};

const SECOND: Duration = Duration::from_secs(1);
const INPUT: &str = "/t/shop/in/x";
const OUTPUT: &str = "/t/shop/out/x";

/// A store in memory whose writes can fail or hang.
#[derive(Debug)]
struct FakeStore {
    node: Node,
    fails: AtomicBool,
    hangs: AtomicBool,
    /// Duration of a write, in milliseconds.
    delay_ms: AtomicU64,
    /// Author and reason of each write.
    authors: Mutex<Vec<(String, String)>>,
}

impl Store for FakeStore {
    fn id(&self) -> StoreId {
        StoreId(1)
    }

    fn partition(&self, _: &str) -> u32 {
        0
    }

    fn write(&self, batch: Batch) -> BoxFuture<'_, Result<Revision, WriteError>> {
        Box::pin(async move {
            if self.hangs.load(SeqCst) {
                std::future::pending::<()>().await;
            }
            sleep(Duration::from_millis(self.delay_ms.load(SeqCst))).await;
            if self.fails.load(SeqCst) {
                return Err(WriteError::Overloaded {
                    location: StoreLocation::from(std::path::PathBuf::new()),
                });
            }
            self.node.check(&batch)?;
            let text = |text: Option<Arc<str>>| text.unwrap_or_default().to_string();
            self.authors.lock().unwrap().push((text(write_author::current()), text(write_author::message())));
            put(&self.node, batch.ops);
            Ok(self.node.revision())
        })
    }

    fn load(&self) -> BoxFuture<'_, Result<StoreSnapshot, StoreError>> {
        unimplemented!("no controller loads")
    }

    fn commits(&self, _: u64) -> Commits {
        unimplemented!("no controller follows the store")
    }
}

fn put(node: &Node, ops: Vec<Op>) {
    let changes = ops.into_iter().map(|op| (op.key, op.value)).collect();
    node.apply(Commit { revision: node.revision().number + 1, changes });
}

/// Copies the input record to the output record and counts the copies.
#[derive(Clone, Debug, Default)]
struct Copier {
    triggers: Triggers,
    /// State that is lost in a panic.
    rounds: usize,
    seen: Arc<Seen>,
    /// Duration of reading the facts.
    delay: Duration,
}

/// Values that a test observes in rounds.
#[derive(Debug, Default)]
struct Seen {
    begins: Mutex<Vec<(Instant, Wake, usize)>>,
    applied: AtomicUsize,
    panics: AtomicBool,
    /// A write by another writer, made after the facts were read.
    interfering: Mutex<Option<Op>>,
    /// Batches in addition to the copy.
    further: Mutex<Vec<Write>>,
    /// Subjects of batches, and whether they were written.
    outcomes: Mutex<Vec<(String, bool)>>,
}

impl Controller for Copier {
    const NAME: &'static str = "copier";
    const DEADLINE: Duration = Duration::from_secs(5);
    type Facts = (Option<fairmesh_rib::Entry>, Option<fairmesh_rib::Entry>);
    type Effect = &'static str;

    fn triggers(&self) -> Triggers {
        self.triggers.clone()
    }

    async fn read_facts(&mut self, node: &Node, wake: Wake) -> Result<Self::Facts, BoxError> {
        self.rounds += 1;
        self.seen.begins.lock().unwrap().push((Instant::now(), wake, self.rounds));
        let facts = (node.get(INPUT), node.get(OUTPUT));
        sleep(self.delay).await;
        if let Some(op) = self.seen.interfering.lock().unwrap().take() {
            put(node, vec![op]);
        }
        Ok(facts)
    }

    fn reconcile(&mut self, (input, output): Self::Facts, _: Now) -> Decision<Self::Effect> {
        assert!(!self.seen.panics.load(SeqCst), "it was told to");
        let mut decision = Decision::default();
        let Some(input) =
            input.filter(|input| output.as_ref().is_none_or(|output| output.value != input.value))
        else {
            return decision;
        };
        if input.value == "bad" {
            decision.refused.push(Refusal { subject: "x".into(), reason: "the value is bad".into() });
            return decision;
        }
        let expect = output.map_or(Expect::Absent, |output| Expect::Revision(output.revision));
        let ops = vec![Op::put(OUTPUT, input.value).expecting(expect)];
        decision.writes.push(Write { subject: "x".into(), reason: "the input changed", ops });
        decision.writes.append(&mut self.seen.further.lock().unwrap());
        decision.effects.push("count the copy");
        decision
    }

    async fn apply(&mut self, _: Self::Effect) -> Result<(), BoxError> {
        self.seen.applied.fetch_add(1, SeqCst);
        Ok(())
    }

    fn written(&mut self, subject: &str) {
        self.seen.outcomes.lock().unwrap().push((subject.to_owned(), true));
    }

    fn not_written(&mut self, subject: &str) {
        self.seen.outcomes.lock().unwrap().push((subject.to_owned(), false));
    }
}

/// A controller with another name. It copies nothing.
#[derive(Clone, Debug)]
struct Bystander {
    rounds: Arc<AtomicUsize>,
    fails: bool,
}

impl Controller for Bystander {
    const NAME: &'static str = "bystander";
    const LONGEST_PAUSE: Duration = Duration::from_secs(2);
    type Facts = ();
    type Effect = std::convert::Infallible;

    fn triggers(&self) -> Triggers {
        Triggers { interval: Some(SECOND), ..Triggers::default() }
    }

    async fn read_facts(&mut self, _: &Node, _: Wake) -> Result<(), BoxError> {
        if self.fails { Err("it was told to".into()) } else { Ok(()) }
    }

    fn reconcile(&mut self, (): (), _: Now) -> Decision<Self::Effect> {
        self.rounds.fetch_add(1, SeqCst);
        Decision::default()
    }

    async fn apply(&mut self, effect: Self::Effect) -> Result<(), BoxError> {
        match effect {}
    }
}

struct Rig {
    node: Node,
    store: Arc<FakeStore>,
    runtime: Runtime,
    seen: Arc<Seen>,
}

impl Rig {
    fn new(lease_expiry: Option<watch::Receiver<Instant>>, shadow: &[&'static str]) -> Self {
        let node = Node::new(StoreId(1));
        let (fails, hangs, delay_ms, authors) = Default::default();
        let store = Arc::new(FakeStore { node: node.clone(), fails, hangs, delay_ms, authors });
        let runtime = Runtime::new(RuntimeConfig {
            node: node.clone(),
            store: Arc::clone(&store) as Arc<dyn Store>,
            lease_expiry,
            wall_clock: || 7,
            seed: 42,
            shadow: shadow.iter().copied().collect(),
        });
        Self { node, store, runtime, seen: Arc::default() }
    }

    /// Starts a [`Copier`] that runs when the input record changes.
    fn start(&self, delay: Duration, min_gap: Duration) {
        let prefixes = vec![Prefix::new("/t/shop/in/").unwrap()];
        let triggers = Triggers { prefixes, min_gap, ..Triggers::default() };
        self.run(Copier { triggers, delay, seen: Arc::clone(&self.seen), rounds: 0 });
    }

    fn run(&self, controller: impl Controller) {
        tokio::spawn(self.runtime.run(controller));
    }

    fn input(&self, value: &'static str) {
        put(&self.node, vec![Op::put(INPUT, value)]);
    }

    fn output(&self) -> Option<String> {
        let entry = self.node.get(OUTPUT)?;
        Some(String::from_utf8(entry.value.to_vec()).unwrap())
    }

    fn status(&self, name: &str) -> ControllerStatus {
        let mut statuses = self.runtime.statuses().read().into_iter();
        statuses.find(|status| status.name == name).unwrap()
    }

    /// Number of rounds.
    fn rounds(&self) -> usize {
        self.seen.begins.lock().unwrap().len()
    }
}

/// Lets every task run until it waits.
async fn settle() {
    sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn change_below_prefix_is_written_with_controller_name_and_reason() {
    let rig = Rig::new(None, &[]);
    rig.start(Duration::ZERO, Duration::ZERO);
    settle().await;
    assert_eq!(rig.rounds(), 1, "the first round needs no change");
    put(&rig.node, vec![Op::put("/t/shop/other/x", "elsewhere")]);
    settle().await;
    assert_eq!(rig.rounds(), 1, "another prefix changed");
    rig.input("one");
    settle().await;
    assert_eq!(rig.output().as_deref(), Some("one"));
    let authors = rig.store.authors.lock().unwrap().clone();
    assert_eq!(authors, [("control plane for controller copier".into(), "the input changed".into())]);
    let status = rig.status("copier");
    let last = status.last.unwrap();
    assert_eq!((status.state, status.next), (ControllerState::Waiting, None));
    assert_eq!((last.writes, last.effects, last.decided_total), (1, 1, 2));
    assert_eq!(last.decided, ["count the copy", "write /t/shop/out/x"]);
    assert_eq!((status.totals.done, status.totals.writes, status.totals.effects), (2, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn changes_within_min_gap_start_one_controller_round() {
    let rig = Rig::new(None, &[]);
    rig.start(Duration::ZERO, 10 * SECOND);
    settle().await;
    for value in ["one", "two", "three"] {
        rig.input(value);
        sleep(SECOND).await;
    }
    assert_eq!((rig.rounds(), rig.output()), (1, None));
    sleep(10 * SECOND).await;
    assert_eq!((rig.rounds(), rig.output().as_deref()), (2, Some("three")));
}

#[tokio::test(start_paused = true)]
async fn change_during_controller_round_starts_another_round() {
    let rig = Rig::new(None, &[]);
    let notify = Arc::<Notify>::default();
    let triggers = Triggers { notify: Some(notify.clone()), ..Triggers::default() };
    rig.run(Copier { triggers, delay: SECOND, seen: Arc::clone(&rig.seen), rounds: 0 });
    sleep(SECOND / 2).await;
    notify.notify_one();
    sleep(5 * SECOND).await;
    let wakes: Vec<_> = rig.seen.begins.lock().unwrap().iter().map(|(_, wake, _)| *wake).collect();
    assert_eq!(wakes, [Wake::Changed, Wake::Changed]);
}

#[tokio::test(start_paused = true)]
async fn round_interval_is_measured_between_round_starts() {
    let rig = Rig::new(None, &[]);
    let triggers = Triggers { interval: Some(3 * SECOND), ..Triggers::default() };
    rig.run(Copier { triggers, delay: SECOND, seen: Arc::clone(&rig.seen), rounds: 0 });
    sleep(10 * SECOND).await;
    let begins = rig.seen.begins.lock().unwrap().clone();
    let gaps: Vec<_> = begins.windows(2).map(|pair| (pair[1].0 - pair[0].0).as_secs()).collect();
    assert_eq!(gaps, [3, 3, 3]);
    assert_eq!((begins[0].1, begins[1].1), (Wake::Changed, Wake::Interval));
}

#[tokio::test(start_paused = true)]
async fn failed_controller_rounds_back_off_until_one_succeeds() {
    let rig = Rig::new(None, &[]);
    rig.store.fails.store(true, SeqCst);
    rig.input("one");
    rig.start(Duration::ZERO, Duration::ZERO);
    sleep(3600 * SECOND).await;
    let begins: Vec<_> = rig.seen.begins.lock().unwrap().iter().map(|(at, ..)| *at).collect();
    let pauses: Vec<_> = begins.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let millisecond = Duration::from_millis(1);
    for (at, pause) in pauses.iter().enumerate() {
        let bound = FIRST_PAUSE.saturating_mul(1 << at.min(20)).min(Copier::LONGEST_PAUSE);
        assert!(*pause <= bound + millisecond, "pause {at}: {pause:?}");
    }
    assert!((60..400).contains(&pauses.len()), "half a minute on average: {}", pauses.len());
    let status = rig.status("copier");
    assert_eq!((status.state, status.failures as usize), (ControllerState::BackingOff, begins.len()));
    assert!(status.next.is_some());
    let problem = status.last.unwrap().problem.unwrap();
    assert!(problem.contains("cannot write x") && problem.contains("retry in a moment"), "{problem}");
    rig.store.fails.store(false, SeqCst);
    sleep(Copier::LONGEST_PAUSE + SECOND).await;
    let status = rig.status("copier");
    assert_eq!((rig.output().as_deref(), status.failures), (Some("one"), 0));
    assert_eq!(status.last.unwrap().problem, None);
}

#[tokio::test(start_paused = true)]
async fn backoff_pauses_do_not_exceed_longest_pause_of_controller() {
    let rig = Rig::new(None, &[]);
    rig.run(Bystander { rounds: Arc::default(), fails: true });
    sleep(600 * SECOND).await;
    let failed = rig.status("bystander").totals.failed;
    assert!(failed >= 300, "a pause is 2 s at most: {failed}");
}

#[tokio::test(start_paused = true)]
async fn controller_round_past_deadline_is_dropped_and_repeated() {
    let rig = Rig::new(None, &[]);
    rig.store.hangs.store(true, SeqCst);
    rig.input("one");
    rig.start(Duration::ZERO, Duration::ZERO);
    sleep(Copier::DEADLINE + Duration::from_millis(1)).await;
    let status = rig.status("copier");
    assert_eq!((status.totals.overdue, status.state), (1, ControllerState::BackingOff));
    assert_eq!(status.last.unwrap().problem.unwrap(), "the round took longer than 5s");
    rig.store.hangs.store(false, SeqCst);
    sleep(FIRST_PAUSE + SECOND).await;
    assert_eq!(rig.output().as_deref(), Some("one"));
}

#[tokio::test(start_paused = true)]
async fn controller_write_completes_after_deadline_of_its_round() {
    let rig = Rig::new(None, &[]);
    rig.store.delay_ms.store(6_000, SeqCst);
    rig.input("one");
    rig.start(Duration::ZERO, Duration::ZERO);
    sleep(Copier::DEADLINE + Duration::from_millis(1)).await;
    assert_eq!((rig.status("copier").totals.overdue, rig.output()), (1, None));
    sleep(SECOND).await;
    assert_eq!(rig.output().as_deref(), Some("one"));
}

#[tokio::test(start_paused = true)]
async fn controller_round_without_lease_applies_effects_and_writes_nothing() {
    let (renewal, expiry) = watch::channel(Instant::now());
    let rig = Rig::new(Some(expiry), &[]);
    rig.input("one");
    rig.start(Duration::ZERO, Duration::ZERO);
    sleep(3600 * SECOND).await;
    let status = rig.status("copier");
    assert_eq!((rig.rounds(), rig.seen.applied.load(SeqCst)), (1, 1), "it does not spin");
    assert_eq!((status.state, status.failures), (ControllerState::WithoutLease, 0));
    assert_eq!((rig.output(), status.totals.without_lease), (None, 1));
    // The other writer's change is read before anything is written.
    rig.input("two");
    settle().await;
    assert_eq!(rig.output(), None);
    renewal.send_replace(Instant::now() + 10 * SECOND);
    settle().await;
    assert_eq!(rig.output().as_deref(), Some("two"));
    sleep(20 * SECOND).await;
    rig.input("three");
    settle().await;
    assert_eq!(rig.output().as_deref(), Some("two"), "the lease has expired again");
}

#[tokio::test(start_paused = true)]
async fn controller_in_shadow_mode_shows_its_decisions_and_changes_nothing() {
    let rig = Rig::new(None, &["copier"]);
    rig.input("one");
    rig.start(Duration::ZERO, Duration::ZERO);
    settle().await;
    let status = rig.status("copier");
    let last = status.last.unwrap();
    assert!(status.is_shadow);
    assert_eq!(last.decided, ["count the copy", "write /t/shop/out/x"]);
    assert_eq!((last.writes, last.effects, status.changed), (0, 0, None));
    assert_eq!((rig.output(), rig.seen.applied.load(SeqCst)), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn panic_resets_state_of_its_controller_and_leaves_others_running() {
    let rig = Rig::new(None, &[]);
    let others = Arc::<AtomicUsize>::default();
    rig.run(Bystander { rounds: Arc::clone(&others), fails: false });
    rig.start(Duration::ZERO, Duration::ZERO);
    settle().await;
    rig.input("one");
    settle().await;
    assert_eq!(rig.seen.begins.lock().unwrap().last().unwrap().2, 2, "its state outlives a round");
    rig.seen.panics.store(true, SeqCst);
    rig.input("two");
    settle().await;
    let status = rig.status("copier");
    assert_eq!((status.totals.panicked, status.failures), (1, 1));
    let problem = status.last.unwrap().problem.unwrap();
    assert!(problem.contains("it was told to"), "{problem}");
    rig.seen.panics.store(false, SeqCst);
    let before = others.load(SeqCst);
    sleep(FIRST_PAUSE + 5 * SECOND).await;
    assert_eq!(rig.output().as_deref(), Some("two"));
    assert_eq!(rig.seen.begins.lock().unwrap()[3].2, 1, "it begins anew");
    assert!(others.load(SeqCst) >= before + 5);
}

#[tokio::test(start_paused = true)]
async fn write_conflict_starts_controller_round_on_newer_facts_at_once() {
    let rig = Rig::new(None, &[]);
    *rig.seen.interfering.lock().unwrap() = Some(Op::put(OUTPUT, "of another writer"));
    rig.input("one");
    rig.start(Duration::ZERO, Duration::ZERO);
    settle().await;
    let status = rig.status("copier");
    assert_eq!((rig.rounds(), rig.output().as_deref()), (2, Some("one")));
    assert_eq!((status.totals.conflicts, status.totals.done, status.failures), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn refused_controller_batch_does_not_prevent_other_batches() {
    let rig = Rig::new(None, &[]);
    let ops = vec![Op::delete("/t/shop/absent/y").expecting(Expect::Revision(3))];
    rig.seen.further.lock().unwrap().push(Write { subject: "y".into(), reason: "it is gone", ops });
    rig.input("one");
    rig.start(Duration::ZERO, Duration::ZERO);
    settle().await;
    let status = rig.status("copier");
    assert_eq!(rig.output().as_deref(), Some("one"));
    assert_eq!((status.totals.conflicts, status.totals.done, status.totals.writes), (1, 1, 1));
    let mut outcomes = rig.seen.outcomes.lock().unwrap().clone();
    outcomes.sort();
    assert_eq!(outcomes, [("x".into(), true), ("y".into(), false)], "the controller learns of both");
}

#[tokio::test(start_paused = true)]
async fn batches_of_controller_round_are_written_concurrently() {
    let rig = Rig::new(None, &[]);
    rig.store.delay_ms.store(1_000, SeqCst);
    let batch = |number: usize| Write {
        subject: number.to_string(),
        reason: "it is new",
        ops: vec![Op::put(format!("/t/shop/further/{number}"), "new")],
    };
    *rig.seen.further.lock().unwrap() = (0..15).map(batch).collect();
    rig.input("one");
    rig.start(Duration::ZERO, Duration::ZERO);
    sleep(SECOND + Duration::from_millis(1)).await;
    let status = rig.status("copier");
    assert_eq!((status.totals.done, status.totals.writes), (1, 16));
}

#[tokio::test(start_paused = true)]
async fn controller_rounds_without_lease_keep_min_gap() {
    let (_renewal, expiry) = watch::channel(Instant::now());
    let rig = Rig::new(Some(expiry), &[]);
    rig.input("one");
    rig.start(Duration::ZERO, 10 * SECOND);
    for number in 0..30 {
        rig.input(if number % 2 == 0 { "two" } else { "one" });
        sleep(SECOND).await;
    }
    assert_eq!((rig.rounds(), rig.status("copier").totals.without_lease), (3, 3));
}

#[tokio::test(start_paused = true)]
async fn controller_status_shows_refusals_with_their_reasons() {
    let rig = Rig::new(None, &[]);
    rig.input("bad");
    rig.start(Duration::ZERO, Duration::ZERO);
    settle().await;
    let last = rig.status("copier").last.unwrap();
    let refusal = Refusal { subject: "x".into(), reason: "the value is bad".into() };
    assert_eq!((last.refused, last.refused_total, last.problem), (vec![refusal], 1, None));
}

/// A controller whose decision waits for another task.
#[derive(Clone, Debug)]
struct Thinker {
    begun: Arc<Notify>,
    awaited: Arc<Mutex<mpsc::Receiver<()>>>,
    /// Whether the other task ran meanwhile.
    has_met: tokio::sync::mpsc::UnboundedSender<bool>,
}

impl Controller for Thinker {
    const NAME: &'static str = "thinker";
    type Facts = ();
    type Effect = std::convert::Infallible;

    fn triggers(&self) -> Triggers {
        Triggers::default()
    }

    async fn read_facts(&mut self, _: &Node, _: Wake) -> Result<(), BoxError> {
        Ok(())
    }

    fn reconcile(&mut self, (): (), _: Now) -> Decision<Self::Effect> {
        self.begun.notify_one();
        let met = self.awaited.lock().unwrap().recv_timeout(10 * SECOND);
        self.has_met.send(met.is_ok()).unwrap();
        Decision::default()
    }

    async fn apply(&mut self, effect: Self::Effect) -> Result<(), BoxError> {
        match effect {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn other_tasks_of_only_thread_run_while_controller_decides() {
    let rig = Rig::new(None, &[]);
    let (sender, awaited) = mpsc::channel();
    let (has_met, mut met) = tokio::sync::mpsc::unbounded_channel();
    let begun = Arc::new(Notify::new());
    rig.run(Thinker { begun: Arc::clone(&begun), awaited: Arc::new(Mutex::new(awaited)), has_met });
    begun.notified().await;
    tokio::spawn(async move { sender.send(()).unwrap() });
    assert_eq!(met.recv().await, Some(true), "the decision ends before the other task runs");
}
