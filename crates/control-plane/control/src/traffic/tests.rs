use std::collections::BTreeSet;

use fairmesh_model::{Revision, StoreId};
use fairmesh_store::{BoxFuture, Commits, StoreError, StoreSnapshot, WriteError};
use tokio::sync::Barrier;

use super::*;

/// A store whose writes wait for one another.
#[derive(Debug)]
struct MeetingStore(Barrier);

impl Store for MeetingStore {
    fn id(&self) -> StoreId {
        StoreId(1)
    }

    fn partition(&self, _: &str) -> u32 {
        0
    }

    fn write(&self, _: Batch) -> BoxFuture<'_, Result<Revision, WriteError>> {
        Box::pin(async move {
            self.0.wait().await;
            Ok(Node::new(self.id()).revision())
        })
    }

    fn load(&self) -> BoxFuture<'_, Result<StoreSnapshot, StoreError>> {
        unreachable!("nothing is loaded")
    }

    fn commits(&self, _: u64) -> Commits {
        unreachable!("nothing is followed")
    }
}

#[tokio::test(start_paused = true)]
async fn tables_of_services_are_written_at_the_same_time() {
    let services: BTreeSet<ServiceName> =
        (0..MAX_WRITES).map(|n| ServiceName::new(format!("shop/s{n}")).unwrap()).collect();
    let store: Arc<dyn Store> = Arc::new(MeetingStore(Barrier::new(MAX_WRITES)));
    let (node, facts, clock) = (Node::new(StoreId(1)), Arc::<FactsIndex>::default(), MonotonicClock::start());
    let reports = Arc::new(TrafficReports::new(node.clone(), facts.clone(), clock));
    let controller = Arc::new(TrafficController::new((&node, &store), facts, reports, clock));
    let write = || TableWrite { from: Region::new("eu").unwrap(), table: None, replaces: Some(1) };
    let writes = services.into_iter().map(|service| (service, vec![write()])).collect();
    let now = Now { ms: clock.now_ms(), started_ms: clock.now_ms(), wall_ms: 0 };
    controller.write_all(writes, &BTreeMap::new(), now).await;
    let (written, failed) = (&controller.counts.written, &controller.counts.write_failures);
    assert_eq!((written.load(Relaxed), failed.load(Relaxed)), (MAX_WRITES as u64, 0));
}
