//! Open-loop load: calls begin when they are due, however slow earlier ones are, so that a stall cannot hide.

use std::{sync::Arc, time::Duration};

use fairmesh_client::{Body, Fault, FaultKind, Mesh, ServiceHandle};
use http_body_util::BodyExt;
use tokio::{sync::Semaphore, task::JoinHandle, time::Instant};

use super::{
    DemoError,
    fleet::{PLACES, Place},
    running::Running,
    service::REGION_HEADER,
    tally::{Failure, Phase, Seen, Tally},
    v1::{AddRequest, GetRequest, cart_client::CartClient},
};

/// Calls that may be under way a region; more mean that the fleet is stuck, and the driver must not grow for ever.
const IN_FLIGHT: usize = 4096;
/// Customers of the shop: the interval of the cart's shard map.
const CUSTOMERS: u64 = 1000;

/// What a shopper does.
#[derive(Clone, Copy, Debug)]
enum Act {
    Browse,
    Recommend,
    ReadCart,
    Add,
    Checkout,
}

/// What shoppers do, in turn. Half of it are POSTs that nobody declared idempotent: [`Act::Add`] and [`Act::Checkout`].
const DAY: [Act; 10] = [
    Act::Browse,
    Act::Add,
    Act::Checkout,
    Act::Browse,
    Act::Add,
    Act::Recommend,
    Act::Add,
    Act::Browse,
    Act::Checkout,
    Act::ReadCart,
];

impl Act {
    /// Only what was on the server when it was killed, and may not be repeated, has an excuse: of what the server that is
    /// killed answers, checkouts.
    fn judge(self, failure: Failure, tally: &Tally, began: Phase) -> Failure {
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

/// The callers of one region, with a library of their own.
#[derive(Clone, Debug)]
struct Shoppers {
    place: Place,
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
    /// Starts `rate` calls a second, spread over the regions.
    pub(super) async fn start(fleet: &Running, tally: &Arc<Tally>, rate: u32) -> Result<Self, DemoError> {
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let mut load = Self { shoppers: Vec::new(), drivers: Vec::new(), stop };
        let period = Duration::from_secs(1) * u32::try_from(PLACES.len()).unwrap_or(1) / rate;
        for place in PLACES {
            let shoppers = Shoppers::new(fleet, place).await?;
            load.shoppers.push(shoppers.clone());
            load.drivers.push(tokio::spawn(drive(shoppers, tally.clone(), period, stopped.clone())));
        }
        Ok(load)
    }

    /// Tries made so far.
    pub(super) fn attempts(&self) -> u64 {
        self.shoppers.iter().map(|shoppers| shoppers.mesh.stats().tries).sum()
    }

    /// Stops, lets the calls under way end, and returns attempts and the share of them that reused a connection.
    pub(super) async fn stop(self) -> (u64, f64) {
        // An error means that every driver ended already.
        let _ = self.stop.send(true);
        for driver in self.drivers {
            // A driver that panicked has been seen on standard error; what it counted stands.
            let _ = driver.await;
        }
        let stats: Vec<_> = self.shoppers.iter().map(|shoppers| shoppers.mesh.stats()).collect();
        let tries: u64 = stats.iter().map(|stats| stats.tries).sum();
        let reused: u64 = stats.iter().map(|stats| stats.reused).sum();
        (tries, reused as f64 / tries.max(1) as f64)
    }
}

async fn drive(
    shoppers: Shoppers,
    tally: Arc<Tally>,
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
        let act = DAY[usize::try_from(number).unwrap_or(0) % DAY.len()];
        let Ok(permit) = room.clone().try_acquire_owned() else {
            tally.add(stuck(&shoppers, act, phase));
            continue;
        };
        let (shoppers, tally) = (shoppers.clone(), tally.clone());
        tokio::spawn(async move {
            let result = shoppers.act(act, number).await.map_err(|failure| act.judge(failure, &tally, phase));
            let (call, from) = (act.name(), shoppers.place.name);
            tally.add(Seen { call, phase, from, took: due.elapsed(), result });
            drop(permit);
        });
    }
    // Every permit back means that no call is under way; the semaphore is never closed.
    let _ = room.acquire_many(IN_FLIGHT as u32).await;
}

fn stuck(shoppers: &Shoppers, act: Act, phase: Phase) -> Seen {
    let why = format!("not begun: {IN_FLIGHT} calls of this region are under way");
    let result = Err(Failure { why, in_flight: false });
    Seen { call: act.name(), phase, from: shoppers.place.name, took: Duration::ZERO, result }
}

impl Shoppers {
    async fn new(fleet: &Running, place: Place) -> Result<Self, DemoError> {
        let mesh =
            super::service::mesh(fleet.agent_socket(place), place, &format!("shoppers-{}", place.name))
                .await?;
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

    /// Does one thing and says in which region it was answered.
    async fn act(&self, act: Act, number: u64) -> Result<String, Failure> {
        let customer = number.wrapping_mul(7919) % CUSTOMERS;
        match act {
            Act::Browse => get(&self.catalog, format!("/items/{customer}")).await,
            Act::Recommend => {
                // The program knows nothing of regions, and its policy keeps calls at home.
                get(&self.recommend, format!("/because/{customer}")).await.map(|_| self.place.name.to_owned())
            }
            Act::Checkout => post(&self.checkout, format!("/checkout/{customer}")).await,
            Act::Add => {
                let request = AddRequest { customer, item: format!("item-{}", number % 50) };
                answered(self.cart("primary", customer)?.add(request).await)
            }
            Act::ReadCart => answered(self.cart("secondary", customer)?.get(GetRequest { customer }).await),
        }
    }

    fn cart(&self, role: &str, customer: u64) -> Result<CartClient<ServiceHandle>, Failure> {
        let handle = self.cart.clone().key(customer.into()).role(role);
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

/// A call that broke under way was in flight when its server died, and nothing says that it may be repeated.
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
