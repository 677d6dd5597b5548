use std::collections::BTreeSet;

use fairmesh_model::{Protocol, Revision, Service, ServiceKind, StoreId};
use fairmesh_rib::Commit;
use fairmesh_signals::MAX_WATCHED_SERVICES;
use fairmesh_store::{BoxFuture, Commits, StoreError, StoreSnapshot, WriteError};
use tokio::{sync::Barrier, time::advance};
use tonic::Code;

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
    let store = Arc::new(MeetingStore(Barrier::new(MAX_WRITES)));
    let node = Node::new(StoreId(1));
    let controller = Arc::new(TrafficController::new(node, store, Arc::default()));
    let write = || TableWrite { from: Region::new("eu").unwrap(), table: None, replaces: Some(1) };
    let writes = services.into_iter().map(|service| (service, vec![write()])).collect();
    let now = Now { ms: EPOCH_MS, started_ms: EPOCH_MS, wall_ms: 0 };
    controller.write_all(writes, &BTreeMap::new(), now).await;
    let (written, failed) = (&controller.counts.written, &controller.counts.write_failures);
    assert_eq!((written.load(Relaxed), failed.load(Relaxed)), (MAX_WRITES as u64, 0));
}

#[tokio::test(start_paused = true)]
async fn calls_of_a_service_are_asked_for_while_it_is_looked_at_and_of_too_many_none_more() {
    let names: Vec<ServiceName> =
        (0..=MAX_WATCHED_SERVICES).map(|n| ServiceName::new(format!("shop/s{n:02}")).unwrap()).collect();
    let node = Node::new(StoreId(1));
    let declared = records::encode(&Record::Service(Service {
        kind: ServiceKind::Replicated,
        protocol: Protocol::Http1,
        virtual_address: None,
        identity: None,
    }));
    let change =
        |name: &ServiceName| (RecordKey::Service(name.clone()).to_string().into(), Some(declared.clone()));
    node.apply(Commit { revision: 1, changes: names.iter().map(change).collect() });
    let store = Arc::new(MeetingStore(Barrier::new(1)));
    let controller = TrafficController::new(node, store, Arc::default());
    let told = || controller.record(TrafficReport::default());
    assert_eq!((told().watched, told().next_report_ms), (Vec::new(), IDLE_INTERVAL_MS as u32));

    let unknown = controller.calls(Some(&ServiceName::new("shop/none").unwrap()), None).unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    controller.calls(None, None).unwrap();
    assert!(told().watched.is_empty(), "a look at what there is asks for nothing");
    for name in &names[..MAX_WATCHED_SERVICES] {
        assert_eq!(controller.calls(Some(name), None).unwrap().watched_ms, Some(0));
    }
    let full = controller.calls(Some(&names[MAX_WATCHED_SERVICES]), None).unwrap_err();
    assert_eq!(full.code(), Code::ResourceExhausted);
    assert!(full.message().contains("64 other services are looked at"), "{full:?}");
    assert!(full.message().contains("try again in 60 s"), "{full:?}");
    assert_eq!((told().watched.len(), told().next_report_ms), (64, REPORT_INTERVAL_MS as u32));
    advance(Duration::from_secs(60)).await;
    assert_eq!((told().watched, told().next_report_ms), (Vec::new(), IDLE_INTERVAL_MS as u32));
}
