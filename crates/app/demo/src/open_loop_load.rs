//! Open-loop load: calls start on schedule, however slow earlier ones are, so that a stall is visible.

use std::{sync::Arc, time::Duration};

use fairmesh_client::{Body, Fault, FaultKind, Mesh, ServiceHandle};
use fairmesh_model::SpiffePath;
use futures_util::future::{join_all, try_join_all};
use http_body_util::BodyExt;
use tokio::{sync::Semaphore, task::JoinHandle, time::Instant};

use super::{
    call_stats::{CallRecord, CallStats, Failure, Phase},
    error::DemoError,
    fleet::Fleet,
    service::REGION_HEADER,
    shop_protocol::{AddRequest, GetRequest, cart_client::CartClient},
    topology::{DemoRegion, REGIONS},
};

/// Maximum number of calls in flight per region. If there were more, the fleet would be stuck, and the load generator
/// must not grow without bound.
const IN_FLIGHT: usize = 4096;
/// Number of customers of the shop. It is the key range of the cart's shard map.
const CUSTOMER_COUNT: u64 = 1000;

/// What a shopper does.
#[derive(Clone, Copy, Debug)]
enum Action {
    Browse,
    Recommend,
    ReadCart,
    Add,
    Checkout,
}

/// Actions of shoppers, in turn. Half of them are POSTs that are not declared idempotent: [`Action::Add`] and
/// [`Action::Checkout`].
const ACTIONS: [Action; 10] = [
    Action::Browse,
    Action::Add,
    Action::Checkout,
    Action::Browse,
    Action::Add,
    Action::Recommend,
    Action::Add,
    Action::Browse,
    Action::Checkout,
    Action::ReadCart,
];

impl Action {
    /// Classifies a failure. Excuses only checkouts, that is, calls in flight to the killed server that must not be
    /// retried.
    fn judge(self, failure: Failure, tally: &CallStats, began: Phase) -> Failure {
        let killed = [began, tally.now()].contains(&Phase::Kill);
        Failure { in_flight: failure.in_flight && killed && matches!(self, Self::Checkout), ..failure }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Browse => "GET catalog",
            Self::Recommend => "GET recommend",
            Self::ReadCart => "gRPC cart Get",
            Self::Add => "gRPC cart Add",
            Self::Checkout => "POST checkout",
        }
    }
}

/// The callers of one region, which have their own instance of the library.
#[derive(Clone, Debug)]
struct Shoppers {
    place: DemoRegion,
    mesh: Mesh,
    catalog: ServiceHandle,
    recommend: ServiceHandle,
    checkout: ServiceHandle,
    cart: ServiceHandle,
}

/// Load on the fleet until it is stopped.
#[derive(Debug)]
pub(super) struct Load {
    shoppers: Vec<Shoppers>,
    drivers: Vec<JoinHandle<()>>,
    stop: tokio::sync::watch::Sender<bool>,
}

impl Load {
    /// Starts `rate` calls per second, spread over the regions, with this identity or none.
    pub(super) async fn start(
        fleet: &Fleet,
        tally: &Arc<CallStats>,
        (rate, identity): (u32, Option<SpiffePath>),
    ) -> Result<Self, DemoError> {
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let mut load = Self { shoppers: Vec::new(), drivers: Vec::new(), stop };
        let period = Duration::from_secs(1) * u32::try_from(REGIONS.len()).unwrap_or(1) / rate;
        for place in REGIONS {
            let shoppers = Shoppers::new(fleet, place, identity.clone()).await?;
            load.shoppers.push(shoppers.clone());
            load.drivers.push(tokio::spawn(drive(shoppers, tally.clone(), period, stopped.clone())));
        }
        Ok(load)
    }

    /// Number of attempts so far.
    pub(super) fn attempts(&self) -> u64 {
        self.shoppers.iter().map(|shoppers| shoppers.mesh.stats().attempts).sum()
    }

    /// Stops, and waits for calls in flight. Returns the number of attempts, and the share of them that reused a
    /// connection.
    pub(super) async fn stop(self) -> (u64, f64) {
        // An error means that every driver has ended.
        let _ = self.stop.send(true);
        for driver in self.drivers {
            // A driver that panicked has printed to standard error; its counts remain valid.
            let _ = driver.await;
        }
        let stats: Vec<_> = self.shoppers.iter().map(|shoppers| shoppers.mesh.stats()).collect();
        let tries: u64 = stats.iter().map(|stats| stats.attempts).sum();
        let reused: u64 = stats.iter().map(|stats| stats.connection_reuses).sum();
        let closed = self.shoppers.into_iter().map(|shoppers| shoppers.mesh.close());
        join_all(closed).await;
        (tries, reused as f64 / tries.max(1) as f64)
    }
}

/// Makes `calls` calls to the shop, from all regions with this identity. Returns once all are counted, including failed
/// ones.
pub(super) async fn call_all(fleet: &Fleet, calls: u64, identity: &SpiffePath) -> Result<(), DemoError> {
    let calls_from = async |place: DemoRegion| {
        let shoppers = Shoppers::new(fleet, place, Some(identity.clone())).await?;
        for (number, act) in (0..calls / REGIONS.len() as u64).zip(ACTIONS.into_iter().cycle()) {
            let _ = shoppers.act(act, number).await;
        }
        shoppers.mesh.close().await;
        Ok(())
    };
    try_join_all(REGIONS.map(calls_from)).await.map(drop)
}

async fn drive(
    shoppers: Shoppers,
    tally: Arc<CallStats>,
    period: Duration,
    stopped: tokio::sync::watch::Receiver<bool>,
) {
    let room = Arc::new(Semaphore::new(IN_FLIGHT));
    let mut due = Instant::now();
    let mut number = 0u64;
    while !*stopped.borrow() {
        due += period;
        number += 1;
        tokio::time::sleep_until(due).await;
        let phase = tally.now();
        let act = ACTIONS[usize::try_from(number).unwrap_or(0) % ACTIONS.len()];
        let Ok(permit) = room.clone().try_acquire_owned() else {
            tally.add(stuck(&shoppers, act, phase));
            continue;
        };
        let (shoppers, tally) = (shoppers.clone(), tally.clone());
        tokio::spawn(async move {
            let result = shoppers.act(act, number).await.map_err(|failure| act.judge(failure, &tally, phase));
            let (call, from) = (act.name(), shoppers.place.name);
            tally.add(CallRecord { call, phase, from, took: due.elapsed(), result });
            drop(permit);
        });
    }
    // With every permit back no call is in flight; the semaphore is never closed.
    let _ = room.acquire_many(IN_FLIGHT as u32).await;
}

fn stuck(shoppers: &Shoppers, act: Action, phase: Phase) -> CallRecord {
    let why = format!("not started: {IN_FLIGHT} calls of this region are in flight");
    let result = Err(Failure { why, in_flight: false });
    CallRecord { call: act.name(), phase, from: shoppers.place.name, took: Duration::ZERO, result }
}

impl Shoppers {
    async fn new(fleet: &Fleet, place: DemoRegion, identity: Option<SpiffePath>) -> Result<Self, DemoError> {
        let client = format!("shoppers-{}", place.name);
        let mesh = super::service::mesh(fleet.agent_socket(place), place, &client, identity).await?;
        let service = |name: &str| mesh.service(name).map_err(|e| DemoError::Fleet(e.to_string()));
        Ok(Self {
            place,
            catalog: service("shop/catalog")?,
            recommend: service("shop/recommend")?,
            checkout: service("shop/checkout")?,
            cart: service("shop/cart")?,
            mesh,
        })
    }

    /// Performs one action and returns the region of the response.
    async fn act(&self, act: Action, number: u64) -> Result<String, Failure> {
        let customer = number.wrapping_mul(7919) % CUSTOMER_COUNT;
        match act {
            Action::Browse => get(&self.catalog, format!("/items/{customer}")).await,
            Action::Recommend => {
                // The program does not report its region, and its policy keeps calls in their region.
                get(&self.recommend, format!("/because/{customer}")).await.map(|_| self.place.name.to_owned())
            }
            Action::Checkout => post(&self.checkout, format!("/checkout/{customer}")).await,
            Action::Add => {
                let request = AddRequest { customer, item: format!("item-{}", number % 50) };
                answered(self.cart("primary", customer)?.add(request).await)
            }
            Action::ReadCart => {
                answered(self.cart("secondary", customer)?.get(GetRequest { customer }).await)
            }
        }
    }

    fn cart(&self, role: &str, customer: u64) -> Result<CartClient<ServiceHandle>, Failure> {
        let handle = self.cart.clone().key(customer).role(role);
        handle.map(CartClient::new).map_err(|e| Failure { why: e.to_string(), in_flight: false })
    }
}

async fn get(service: &ServiceHandle, path: String) -> Result<String, Failure> {
    http(service, http::Request::get(path)).await
}

async fn post(service: &ServiceHandle, path: String) -> Result<String, Failure> {
    http(service, http::Request::post(path)).await
}

async fn http(service: &ServiceHandle, request: http::request::Builder) -> Result<String, Failure> {
    let request =
        request.body(Body::empty()).map_err(|e| Failure { why: e.to_string(), in_flight: false })?;
    let response = service.send(request).await.map_err(|fault| failure(&fault))?;
    let (head, body) = response.into_parts();
    let body = body.collect().await.map_err(|fault| failure(&fault))?.to_bytes();
    if head.status.is_success() {
        let region = head.headers.get(REGION_HEADER).and_then(|region| region.to_str().ok());
        return Ok(region.unwrap_or("?").to_owned());
    }
    Err(Failure { why: format!("{} {}", head.status, String::from_utf8_lossy(&body)), in_flight: false })
}

fn answered<T>(answer: Result<tonic::Response<T>, tonic::Status>) -> Result<String, Failure> {
    match answer {
        Ok(answer) => {
            let region = answer.metadata().get(REGION_HEADER).and_then(|region| region.to_str().ok());
            Ok(region.unwrap_or("?").to_owned())
        }
        Err(status) => Err(grpc_failure(&status)),
    }
}

/// Describes a fault. A call whose connection broke was in flight when its server died, and is not declared safe to
/// retry.
fn failure(fault: &Fault) -> Failure {
    Failure { why: fault.kind().label().to_owned(), in_flight: fault.kind() == FaultKind::Reset }
}

fn grpc_failure(status: &tonic::Status) -> Failure {
    use std::error::Error;
    match status.source().and_then(|source| source.downcast_ref::<Fault>()) {
        Some(fault) => failure(fault),
        None => Failure { why: format!("{:?}: {}", status.code(), status.message()), in_flight: false },
    }
}
