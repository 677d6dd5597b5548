//! Shard hooks of the program. The hooks of one shard run one after another, in the order of the maps.

use std::{collections::BTreeMap, error::Error, fmt, future::Future, pin::Pin, sync::Arc};

use fairmesh_model::{KeyRange, ShardId};
use tokio::{
    task::{JoinError, JoinSet},
    time::sleep,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::registration::backoff::Backoff;

/// Result of a hook.
pub type HookResult = Result<(), Box<dyn Error + Send + Sync>>;

type HookFuture = Pin<Box<dyn Future<Output = HookResult> + Send>>;
type StartHook = Arc<dyn Fn(ShardId, KeyRange) -> HookFuture + Send + Sync>;
type StopHook = Arc<dyn Fn(ShardId) -> HookFuture + Send + Sync>;

/// The program's hooks for assigned and released shards.
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

/// Runs hooks.
pub(super) struct HookRunner {
    hooks: ShardHooks,
    tasks: JoinSet<Option<Loaded>>,
    /// Tokens that cancel loads in progress, by shard.
    loading: BTreeMap<ShardId, CancellationToken>,
    /// Cancelled when the last hook of a shard has ended.
    last: BTreeMap<ShardId, CancellationToken>,
}

/// A loaded shard. Its load may have been cancelled just before it completed.
struct Loaded {
    shard: ShardId,
    cancelled: CancellationToken,
}

/// Turn of one hook among the hooks of its shard. Dropping it begins the next turn. Without turns, a stop in progress
/// could drop what a concurrent start has just loaded, and an empty shard would be served.
struct HookTurn {
    before: Option<CancellationToken>,
    _ended: DropGuard,
}

impl HookTurn {
    async fn wait(&self) {
        if let Some(before) = &self.before {
            before.cancelled().await;
        }
    }
}

impl HookRunner {
    pub(super) fn new(hooks: ShardHooks) -> Self {
        Self { hooks, tasks: JoinSet::new(), loading: BTreeMap::new(), last: BTreeMap::new() }
    }

    pub(super) fn is_loading(&self) -> bool {
        !self.loading.is_empty()
    }

    /// Loads a shard after earlier hooks for it have ended.
    pub(super) fn load(&mut self, shard: ShardId, range: KeyRange) {
        let (turn, hook, cancelled) = (self.turn(shard), self.hooks.start.clone(), CancellationToken::new());
        self.loading.insert(shard, cancelled.clone());
        self.tasks.spawn(async move {
            // Awaited even if cancelled, since later hooks wait for the same turn.
            turn.wait().await;
            let loaded = match hook {
                Some(hook) => cancelled.run_until_cancelled(load(&hook, shard, range)).await.is_some(),
                None => true,
            };
            loaded.then_some(Loaded { shard, cancelled })
        });
    }

    /// Cancels the load of a shard if it is in progress, and releases the shard.
    pub(super) fn release(&mut self, shard: ShardId) {
        if let Some(cancelled) = self.loading.remove(&shard) {
            cancelled.cancel();
        }
        let Some(hook) = self.hooks.stop.clone() else { return };
        let turn = self.turn(shard);
        self.tasks.spawn(async move {
            turn.wait().await;
            if let Err(error) = hook(shard).await {
                tracing::warn!(%shard, error, "the stop hook of a shard failed");
            }
            None
        });
    }

    /// Waits until a hook ends. Returns the shard if it is loaded then; `None` if no hook is running.
    pub(super) async fn ended(&mut self) -> Option<Option<ShardId>> {
        let ended = self.tasks.join_next().await?;
        Some(self.note(ended))
    }

    fn note(&mut self, ended: Result<Option<Loaded>, JoinError>) -> Option<ShardId> {
        match ended {
            Ok(Some(Loaded { shard, cancelled })) if !cancelled.is_cancelled() => {
                self.loading.remove(&shard);
                Some(shard)
            }
            Err(error) if error.is_panic() => {
                tracing::error!(%error, "a shard hook panicked; its shard is not loaded");
                None
            }
            Ok(_) | Err(_) => None,
        }
    }

    fn turn(&mut self, shard: ShardId) -> HookTurn {
        self.last.retain(|_, ended| !ended.is_cancelled());
        let ended = CancellationToken::new();
        let before = self.last.insert(shard, ended.clone());
        HookTurn { before, _ended: ended.drop_guard() }
    }
}

async fn load(hook: &StartHook, shard: ShardId, range: KeyRange) {
    let mut backoff = Backoff::default();
    while let Err(error) = hook(shard, range).await {
        tracing::warn!(%shard, %range, error, "a shard could not be loaded; retrying");
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

    /// Steps of hooks in order. Each step takes a while.
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

    fn running(log: &Log) -> HookRunner {
        let (starting, stopping) = (Arc::clone(log), Arc::clone(log));
        HookRunner::new(ShardHooks {
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

    /// Waits until no hook is running. Returns the loaded shards.
    async fn all(running: &mut HookRunner) -> Vec<ShardId> {
        let mut loaded = Vec::new();
        while let Some(ended) = running.ended().await {
            loaded.extend(ended);
        }
        loaded
    }

    #[tokio::test(start_paused = true)]
    async fn shard_assigned_again_is_loaded_after_its_release_ends() {
        let log = Log::default();
        let mut running = running(&log);
        running.load(SHARD, range());
        assert_eq!(running.ended().await, Some(Some(SHARD)));
        running.release(SHARD);
        running.load(SHARD, range());
        // Another shard does not have to wait.
        running.load(ShardId(2), range());
        assert_eq!(all(&mut running).await, [ShardId(2), SHARD]);
        assert_eq!(done(&log), ["loads", "loaded", "stops", "stopped", "loads", "loaded"]);
    }

    #[tokio::test(start_paused = true)]
    async fn shard_load_cancelled_before_its_turn_never_runs() {
        let log = Log::default();
        let mut running = running(&log);
        running.release(SHARD);
        running.load(SHARD, range());
        running.release(SHARD);
        assert!(!running.is_loading());
        assert_eq!(all(&mut running).await, []);
        assert_eq!(done(&log), ["stops", "stopped", "stops", "stopped"]);
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_shard_load_ends_before_shard_release() {
        let log = Log::default();
        let mut running = running(&log);
        running.load(SHARD, range());
        assert!(timeout(LONG / 2, running.ended()).await.is_err(), "under way");
        running.release(SHARD);
        running.load(SHARD, range());
        assert_eq!(all(&mut running).await, [SHARD]);
        assert_eq!(done(&log), ["loads", "stops", "stopped", "loads", "loaded"]);
        assert!(!running.is_loading());
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_shard_load_does_not_mark_next_load_as_done() {
        let mut running = running(&Log::default());
        running.load(SHARD, range());
        sleep(LONG * 2).await;
        running.release(SHARD);
        running.load(SHARD, range());
        assert_eq!(running.ended().await, Some(None));
        assert!(running.is_loading());
        assert_eq!(all(&mut running).await, [SHARD]);
    }
}
