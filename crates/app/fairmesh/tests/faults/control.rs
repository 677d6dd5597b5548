//! A control plane that is killed repeatedly while it writes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_model::{Protocol, RecordKey, Service, ServiceKind, ServiceName};
use fairmesh_wire::{
    handshake::{self, Connection},
    record_encoding,
    transport::Address,
    v1::{ApplyRequest, Op},
};
use tokio::task::JoinHandle;

use crate::harness::{Kind, Load, Spec, World, beside_others, until};

const ROUNDS: usize = 10;
/// Services written in one batch: afterwards all or none of them must exist.
const BATCH: [&str; 4] = ["a", "b", "c", "d"];

/// Clients that write batches in a loop, and reconnect when the control plane is gone.
struct Writers {
    stop: Arc<AtomicBool>,
    /// Acknowledged batches, by the name prefix of their services.
    acknowledged: Arc<Mutex<BTreeSet<String>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Writers {
    fn start(control: &Address, count: usize) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let acknowledged = Arc::<Mutex<BTreeSet<String>>>::default();
        let write = |writer| {
            let (control, stop, acknowledged) = (control.clone(), stop.clone(), acknowledged.clone());
            tokio::spawn(async move {
                let mut connection = None;
                for number in 0.. {
                    if stop.load(Relaxed) {
                        return;
                    }
                    // A batch without a response is never sent again: the store must hold all of it or nothing.
                    let name = format!("w{writer}n{number}");
                    match write(&mut connection, &control, &name).await {
                        Some(()) => drop(acknowledged.lock().unwrap().insert(name)),
                        None => connection = None,
                    }
                }
            })
        };
        let tasks = (0..count).map(write).collect();
        Self { stop, acknowledged, tasks }
    }

    async fn go_on(&self, batches: usize) {
        let count = || self.acknowledged.lock().unwrap().len();
        let goal = count() + batches;
        until("writes are acknowledged", async || count() >= goal).await;
    }

    async fn stop(self) -> BTreeSet<String> {
        self.stop.store(true, Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        self.acknowledged.lock().unwrap().clone()
    }
}

/// Writes one batch; `None` if it was not acknowledged.
async fn write(connection: &mut Option<Connection>, control: &Address, name: &str) -> Option<()> {
    if connection.is_none() {
        *connection = handshake::connect(&Default::default(), control, "writer").await.ok();
    }
    let Some(connection) = connection else {
        tokio::time::sleep(Duration::from_millis(5)).await;
        return None;
    };
    let service = Service {
        kind: ServiceKind::Replicated,
        protocol: Protocol::Http2,
        virtual_address: None,
        identity: None,
    };
    let ops = BATCH.map(|last| {
        let name = ServiceName::new(format!("bulk/{name}-{last}")).unwrap();
        let value = Some(record_encoding::encode(&service.clone().into()));
        Op { key: RecordKey::Service(name).to_string(), value, condition: None }
    });
    let request = ApplyRequest { ops: ops.into(), dry_run: false, ..Default::default() };
    connection.admin().apply(request).await.ok().map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killing_control_plane_loses_no_acknowledged_write_and_no_call() {
    let _machine = beside_others().await;
    let mut world = World::start("").await;
    let _one = Spec::new("shop/one", "a", Protocol::Http1).here(&world).await;
    let mesh = world.mesh().await;
    let service = mesh.service("shop/one").unwrap();
    let load = Load::start(Load::of(&service, &[(Kind::Get, 1), (Kind::Post, 1)]));
    let writers = Writers::start(&world.control_address(), 4);
    for round in 0..ROUNDS {
        // A different number each round, so that kills come at different moments of a write.
        writers.go_on(2 + 3 * round).await;
        world.control.kill().await;
        load.goes_on(20).await;
        world.control.restart();
        world.control_is_up().await;
    }
    writers.go_on(1).await;
    let acknowledged = writers.stop().await;

    let listed = world.cli(&["get", "services", "--tenant", "bulk", "--json"]).await.json();
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for service in listed.as_array().unwrap() {
        let (batch, _) = service["name"].as_str().unwrap()["bulk/".len()..].split_once('-').unwrap();
        *found.entry(batch.to_owned()).or_default() += 1;
    }
    assert!(found.values().all(|count| *count == BATCH.len()), "there is half of a batch: {found:?}");
    let lost: Vec<_> = acknowledged.iter().filter(|batch| !found.contains_key(*batch)).collect();
    assert!(
        lost.is_empty(),
        "{} of {} acknowledged batches are gone: {lost:?}",
        lost.len(),
        acknowledged.len()
    );

    let _two = Spec::new("shop/one", "b", Protocol::Http1).here(&world).await;
    load.reaches("b").await;
    load.stop_unharmed().await;
}
