//! What a program does when shards come and go: the hooks of one shard run one after the other, in the order of the map.

use std::{collections::BTreeMap, error::Error, fmt, future::Future, pin::Pin, sync::Arc};

use fairmesh_model::{KeyRange, ShardId};
use tokio::{
    task::{JoinError, JoinSet},
    time::sleep,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::backoff::Backoff;

/// What a hook says: done, or why not.
pub type HookResult = Result<(), Box<dyn Error + Send + Sync>>;

type HookFuture = Pin<Box<dyn Future<Output = HookResult> + Send>>;
type StartHook = Arc<dyn Fn(ShardId, KeyRange) -> HookFuture + Send + Sync>;
type StopHook = Arc<dyn Fn(ShardId) -> HookFuture + Send + Sync>;

/// What a program does when shards come and go.
#[derive(Clone, Default)]
pub struct ShardHooks {
    pub(crate) start: Option<StartHook>,
    pub(crate) stop: Option<StopHook>,
}

impl fmt::Debug for ShardHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, stop } = self;
        f.debug_struct("ShardHooks").field("start", &start.is_some()).field("stop", &stop.is_some()).finish()
    }
}

/// The hooks that are running.
pub(super) struct Running {
    hooks: ShardHooks,
    tasks: JoinSet<Option<Loaded>>,
    /// What calls the loading of a shard off.
    loading: BTreeMap<ShardId, CancellationToken>,
    /// Cancelled when the last hook of a shard has ended.
    last: BTreeMap<ShardId, CancellationToken>,
}

/// A shard is loaded, unless that was called off in the last moment.
struct Loaded {
    shard: ShardId,
    off: CancellationToken,
}

/// The turn of a hook among those of its shard. A stop that still runs would otherwise drop what a start beside it has
/// just loaded, and an empty shard would be served. The next has its turn when this one is dropped.
struct Turn {
    before: Option<CancellationToken>,
    _ended: DropGuard,
}

impl Turn {
    async fn come(&self) {
        if let Some(before) = &self.before {
            before.cancelled().await;
        }
    }
}

impl Running {
    pub(super) fn new(hooks: ShardHooks) -> Self {
        Self { hooks, tasks: JoinSet::new(), loading: BTreeMap::new(), last: BTreeMap::new() }
    }

    pub(super) fn is_loading(&self) -> bool {
        !self.loading.is_empty()
    }

    /// Loads a shard, once what runs for it has ended.
    pub(super) fn load(&mut self, shard: ShardId, range: KeyRange) {
        let (turn, hook, off) = (self.turn(shard), self.hooks.start.clone(), CancellationToken::new());
        self.loading.insert(shard, off.clone());
        self.tasks.spawn(async move {
            // Called off or not: who comes after waits for what this one waits for.
            turn.come().await;
            let loaded = match hook {
                Some(hook) => off.run_until_cancelled(load(&hook, shard, range)).await.is_some(),
                None => true,
            };
            loaded.then_some(Loaded { shard, off })
        });
    }

    /// Calls the loading of a shard off, where it is under way, and lets go of it.
    pub(super) fn let_go(&mut self, shard: ShardId) {
        if let Some(off) = self.loading.remove(&shard) {
            off.cancel();
        }
        let Some(hook) = self.hooks.stop.clone() else { return };
        let turn = self.turn(shard);
        self.tasks.spawn(async move {
            turn.come().await;
            if let Err(error) = hook(shard).await {
                tracing::warn!(%shard, error, "a shard was not let go of cleanly");
            }
            None
        });
    }

    /// Waits until a hook ends; which shard is loaded then, if any. `None` when none runs.
    pub(super) async fn ended(&mut self) -> Option<Option<ShardId>> {
        let ended = self.tasks.join_next().await?;
        Some(self.note(ended))
    }

    fn note(&mut self, ended: Result<Option<Loaded>, JoinError>) -> Option<ShardId> {
        match ended {
            Ok(Some(Loaded { shard, off })) if !off.is_cancelled() => {
                self.loading.remove(&shard);
                Some(shard)
            }
            Err(error) if error.is_panic() => {
                tracing::error!(%error, "a shard hook panicked; its shard stays unloaded");
                None
            }
            Ok(_) | Err(_) => None,
        }
    }

    fn turn(&mut self, shard: ShardId) -> Turn {
        self.last.retain(|_, ended| !ended.is_cancelled());
        let ended = CancellationToken::new();
        let before = self.last.insert(shard, ended.clone());
        Turn { before, _ended: ended.drop_guard() }
    }
}

async fn load(hook: &StartHook, shard: ShardId, range: KeyRange) {
    let mut backoff = Backoff::default();
    while let Err(error) = hook(shard, range).await {
        tracing::warn!(%shard, %range, error, "a shard could not be loaded; trying again");
        sleep(backoff.next()).await;
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Mutex, time::Duration};

    use fairmesh_model::ShardKey;
    use tokio::time::timeout;

    use super::*;

    const SHARD: ShardId = ShardId(1);
    const LONG: Duration = Duration::from_secs(60);

    /// What hooks did, in order; each takes a while.
    type Log = Arc<Mutex<Vec<(ShardId, &'static str)>>>;

    fn during(log: &Log, shard: ShardId, begun: &'static str, ended: &'static str) -> HookFuture {
        let log = Arc::clone(log);
        Box::pin(async move {
            log.lock().unwrap().push((shard, begun));
            sleep(LONG).await;
            log.lock().unwrap().push((shard, ended));
            Ok(())
        })
    }

    fn running(log: &Log) -> Running {
        let (starting, stopping) = (Arc::clone(log), Arc::clone(log));
        Running::new(ShardHooks {
            start: Some(Arc::new(move |shard, _| during(&starting, shard, "loads", "loaded"))),
            stop: Some(Arc::new(move |shard| during(&stopping, shard, "stops", "stopped"))),
        })
    }

    fn done(log: &Log) -> Vec<&'static str> {
        log.lock().unwrap().iter().filter(|(shard, _)| *shard == SHARD).map(|(_, what)| *what).collect()
    }

    fn range() -> KeyRange {
        KeyRange { first: ShardKey(0), last: ShardKey(9) }
    }

    /// Waits until nothing runs; which shards were loaded.
    async fn all(running: &mut Running) -> Vec<ShardId> {
        let mut loaded = Vec::new();
        while let Some(ended) = running.ended().await {
            loaded.extend(ended);
        }
        loaded
    }

    #[tokio::test(start_paused = true)]
    async fn a_shard_that_comes_back_is_loaded_after_it_was_let_go_of() {
        let log = Log::default();
        let mut running = running(&log);
        running.load(SHARD, range());
        assert_eq!(running.ended().await, Some(Some(SHARD)));
        running.let_go(SHARD);
        running.load(SHARD, range());
        // Another shard waits for nobody.
        running.load(ShardId(2), range());
        assert_eq!(all(&mut running).await, [ShardId(2), SHARD]);
        assert_eq!(done(&log), ["loads", "loaded", "stops", "stopped", "loads", "loaded"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_load_that_is_called_off_before_its_turn_never_runs_and_lets_nobody_by() {
        let log = Log::default();
        let mut running = running(&log);
        running.let_go(SHARD);
        running.load(SHARD, range());
        running.let_go(SHARD);
        assert!(!running.is_loading());
        assert_eq!(all(&mut running).await, []);
        assert_eq!(done(&log), ["stops", "stopped", "stops", "stopped"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_load_that_is_called_off_has_ended_before_its_shard_is_let_go_of() {
        let log = Log::default();
        let mut running = running(&log);
        running.load(SHARD, range());
        assert!(timeout(LONG / 2, running.ended()).await.is_err(), "under way");
        running.let_go(SHARD);
        running.load(SHARD, range());
        assert_eq!(all(&mut running).await, [SHARD]);
        assert_eq!(done(&log), ["loads", "stops", "stopped", "loads", "loaded"]);
        assert!(!running.is_loading());
    }

    #[tokio::test(start_paused = true)]
    async fn a_load_that_ended_as_it_was_called_off_does_not_count_for_the_next() {
        let mut running = running(&Log::default());
        running.load(SHARD, range());
        sleep(LONG * 2).await;
        running.let_go(SHARD);
        running.load(SHARD, range());
        assert_eq!(running.ended().await, Some(None));
        assert!(running.is_loading());
        assert_eq!(all(&mut running).await, [SHARD]);
    }
}
