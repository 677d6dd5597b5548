//! Test fixtures of this crate: an in-memory store that applies commits to its node.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use fairmesh_model::{Endpoint, EndpointState, Revision, ServiceName, StoreId};
use fairmesh_rib::{Batch, Node};
use fairmesh_store::{BoxFuture, Commits, Store, StoreError, StoreSnapshot, WriteError};

use crate::{InstanceClaim, InstanceRef, Registration, Registry};

#[derive(Debug)]
pub(crate) struct MemoryStore {
    node: Node,
    pub(crate) full: AtomicBool,
    /// Whether responses after a commit are delayed, as by a store that waits for its disk. The caller may be
    /// cancelled meanwhile.
    pub(crate) slow: AtomicBool,
}

impl MemoryStore {
    fn commit(&self, batch: Batch) -> Result<Revision, WriteError> {
        if self.full.load(Ordering::Relaxed) {
            return Err(WriteError::DiskFull { location: "memory".into() });
        }
        batch.validate().unwrap();
        self.node.check(&batch)?;
        let next = self.node.revision().number + 1;
        self.node.apply(batch.into_commit(next));
        Ok(self.node.revision())
    }
}

impl Store for MemoryStore {
    fn id(&self) -> StoreId {
        StoreId(7)
    }

    fn partition(&self, _: &str) -> u32 {
        0
    }

    fn write(&self, batch: Batch) -> BoxFuture<'_, Result<Revision, WriteError>> {
        Box::pin(async move {
            let committed = self.commit(batch);
            if self.slow.load(Ordering::Relaxed) {
                tokio::task::yield_now().await;
            }
            committed
        })
    }

    fn load(&self) -> BoxFuture<'_, Result<StoreSnapshot, StoreError>> {
        unreachable!("the node is never loaded from it")
    }

    fn commits(&self, _: u64) -> Commits {
        unreachable!("it feeds the node itself")
    }
}

pub(crate) struct TestRegistry {
    pub(crate) registry: Registry,
    pub(crate) node: Node,
    pub(crate) store: Arc<MemoryStore>,
}

impl TestRegistry {
    pub(crate) fn new() -> Self {
        let node = Node::new(StoreId(7));
        let store = Arc::new(MemoryStore {
            node: node.clone(),
            full: AtomicBool::new(false),
            slow: AtomicBool::new(false),
        });
        Self { registry: Registry::new(store.clone(), node.clone()), node, store }
    }

    /// Starts a registry that runs until the test ends.
    pub(crate) fn running() -> Self {
        let test = Self::new();
        test.run();
        test
    }

    pub(crate) fn run(&self) {
        let registry = self.registry.clone();
        tokio::spawn(async move { registry.run(std::future::pending()).await });
    }

    /// Starts another process on the same store.
    pub(crate) fn restarted(&self) -> Self {
        let registry = Registry::new(self.store.clone(), self.node.clone());
        Self { registry, node: self.node.clone(), store: self.store.clone() }
    }

    pub(crate) fn revision(&self) -> u64 {
        self.node.revision().number
    }

    /// Waits until a condition on the records holds.
    pub(crate) async fn until(&self, holds: impl Fn(&Registry) -> bool) {
        let mut revisions = self.node.revisions();
        let wait = async {
            while !holds(&self.registry) {
                revisions.changed().await.unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait).await.expect("the condition never held");
    }

    pub(crate) fn state(&self, instance: &str) -> Option<EndpointState> {
        state(&self.registry, instance)
    }
}

pub(crate) fn state(registry: &Registry, instance: &str) -> Option<EndpointState> {
    let endpoints = registry.endpoints(&cart()).into_iter();
    endpoints.map(|held| held.endpoint).find(|e| e.instance.as_str() == instance).map(|e| e.state)
}

pub(crate) fn cart() -> ServiceName {
    "shop/cart".parse().unwrap()
}

pub(crate) fn instance_ref(instance: &str) -> InstanceRef {
    InstanceRef { service: cart(), instance: instance.parse().unwrap() }
}

/// A claim of the instance by any process.
pub(crate) fn any_process(instance: &str) -> InstanceClaim {
    instance_ref(instance).into()
}

/// A serving endpoint of `shop/cart` in `eu`, without a lease.
pub(crate) fn endpoint(instance: &str) -> Registration {
    let endpoint = Endpoint {
        mtls: false,
        address: "10.0.0.7:80".parse().unwrap(),
        ..fairmesh_test_support::endpoint(instance, "eu")
    };
    Registration { service: cart(), endpoint, explicit_state: false, declaration: None }
}

pub(crate) const TERM: Duration = Duration::from_secs(10);

/// A serving endpoint of `shop/cart` in `eu` with a lease of [`TERM`].
pub(crate) fn leased(instance: &str) -> Registration {
    let mut registration = endpoint(instance);
    registration.endpoint.lease = Some(TERM);
    registration
}
