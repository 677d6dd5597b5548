//! Programs on machines without an agent ask a lookaside for endpoints.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fairmesh_client::Mesh;
use fairmesh_model::Protocol;
use fairmesh_wire::{
    grpc_lookup::{RouteLookupRequest, route_lookup_service_client::RouteLookupServiceClient},
    lookaside::v1::{
        Lease, PickRequest, PickResponse, ReportRequest, Result as Told, lookaside_client::LookasideClient,
    },
    transport::{Address, Channel, connect_channel},
};
use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tonic::Code;

use crate::harness::{Caller, Kind, Load, Process, Program, Spec, World, beside_others, free_port, until};

/// Shards of ten keys each, with one copy each.
const SHARDED: &str = "\
{kind: Service, name: shop/cart, type: sharded}
---
kind: ShardMap
service: shop/cart
interval: {start: 0, end: 20}
shards:
  - {id: 0, start: 0, replicas: [{instance: cart-0, region: eu, role: primary}]}
  - {id: 1, start: 10, replicas: [{instance: cart-1, region: eu, role: primary}]}
";

/// A lookaside process.
pub(crate) struct Lookaside {
    process: Process,
    address: Address,
    admin: String,
}

impl Lookaside {
    pub(crate) async fn start(world: &World, more: &str) -> Self {
        let this = Self::begin(world, more);
        until("the lookaside is ready", async || this.page("/readyz").await.contains("200 OK")).await;
        this
    }

    fn begin(world: &World, more: &str) -> Self {
        let address = Address::Unix(world.path("lookaside.sock"));
        let admin = format!("127.0.0.1:{}", free_port());
        let agent = world.agent_address();
        let args = format!(
            "lookaside --listen {address} --agent {agent} --admin {admin} --client-id lookaside{more}"
        );
        let process = Process::start(Program::fairmesh(world.path("lookaside.log"), &args));
        Self { process, address, admin }
    }

    async fn page(&self, path: &str) -> String {
        let Ok(mut stream) = TcpStream::connect(&self.admin).await else { return String::new() };
        let request = format!("GET {path} HTTP/1.1\r\nhost: lookaside\r\nconnection: close\r\n\r\n");
        let mut answer = String::new();
        let asked = stream.write_all(request.as_bytes()).await.is_ok();
        if asked && stream.read_to_string(&mut answer).await.is_ok() { answer } else { String::new() }
    }

    async fn channel(&self) -> Channel {
        connect_channel(&Default::default(), &self.address).await.unwrap()
    }

    pub(crate) async fn caller(&self) -> LookasideClient<Channel> {
        LookasideClient::new(self.channel().await)
    }

    /// A program's `Mesh` that uses only this lookaside.
    async fn mesh(&self) -> Mesh {
        Mesh::builder().lookaside(self.address.clone()).client_id("test").connect().await.unwrap()
    }
}

fn of(service: &str, endpoints: u32) -> PickRequest {
    PickRequest { service: service.into(), endpoints, ..PickRequest::default() }
}

async fn pick(caller: &mut LookasideClient<Channel>, request: PickRequest) -> PickResponse {
    caller.pick(request).await.unwrap().into_inner()
}

fn names(leases: &[Lease]) -> BTreeSet<&str> {
    leases.iter().map(|lease| lease.instance.as_str()).collect()
}

async fn report(caller: &mut LookasideClient<Channel>, result: Told) -> u32 {
    caller.report(ReportRequest { results: vec![result] }).await.unwrap().into_inner().unknown
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leased_calls_continue_after_lookaside_dies() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let first = Spec::new("shop/one", "first", Protocol::Http1).here(&world).await;
    let _second = Spec::new("shop/one", "second", Protocol::Http1).here(&world).await;
    let mut lookaside = Lookaside::start(&world, " --lease 300ms --lease-calls 50").await;
    let mesh = lookaside.mesh().await;
    let load = Load::start(Load::of(&mesh.service("shop/one").unwrap(), &[(Kind::Get, 2), (Kind::Post, 2)]));
    load.reaches("first").await;
    load.reaches("second").await;

    let _third = Spec::new("shop/one", "third", Protocol::Http1).here(&world).await;
    load.reaches("third").await;
    first.stop().await;
    load.goes_on(100).await;

    lookaside.process.kill().await;
    until("it is noticed", async || !mesh.stats().data_age.is_zero()).await;
    load.goes_on(200).await;
    lookaside.process.restart();
    until("it is back", async || mesh.stats().data_age.is_zero()).await;
    let _fourth = Spec::new("shop/one", "fourth", Protocol::Http1).here(&world).await;
    load.reaches("fourth").await;
    load.stop_unharmed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keyed_calls_use_one_lease_per_shard() {
    let _machine = beside_others().await;
    let world = World::start(SHARDED).await;
    let spec = |name| Spec { sharded: true, ..Spec::new("shop/cart", name, Protocol::Http1) };
    let _carts = [spec("cart-0").here(&world).await, spec("cart-1").here(&world).await];
    for name in ["cart-0", "cart-1"] {
        world.serves("shop/cart", name).await;
    }
    let lookaside = Lookaside::start(&world, " --lease 60s").await;
    let mesh = lookaside.mesh().await;
    let caller = |key: u128| Caller::new(&mesh.service("shop/cart").unwrap().key(key), Kind::Get);
    for key in 0..20 {
        let answered = caller(key).call(0).await.unwrap();
        assert_eq!(answered, if key < 10 { "cart-0" } else { "cart-1" }, "key {key}");
    }
    let metrics = lookaside.page("/metrics").await;
    assert!(metrics.contains("fairmesh_lookaside_picks_total 2\n"), "one for each shard: {metrics}");
    assert!(caller(20).call(0).await.is_err(), "no shard holds it");

    let told = world.lookaside_cli(&lookaside.address, &["shop/cart", "--key", "13", "--json"]).await.json();
    let of = |name: &str| told[0][name].as_str().unwrap().to_owned();
    assert_eq!((of("instance"), of("firstKey"), of("lastKey")), ("cart-1".into(), "10".into(), "19".into()));
    let keyless = world.lookaside_cli(&lookaside.address, &["shop/cart"]).await.fails();
    assert!(keyless.contains("called by key"), "{keyless}");
    let unknown = world.lookaside_cli(&lookaside.address, &["shop/nobody"]).await.fails();
    assert!(unknown.contains("is not declared"), "{unknown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lookaside_picks_use_load_reports_of_other_callers() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let mut servers = Vec::new();
    for name in ["one-0", "one-1", "one-2"] {
        servers.push(Spec::new("shop/one", name, Protocol::Http2).here(&world).await);
    }
    for name in ["one-0", "one-1", "one-2"] {
        world.serves("shop/one", name).await;
    }
    let lookaside = Lookaside::start(&world, " --lease 60s --max-leases 100").await;
    let mut caller = lookaside.caller().await;
    until("all are known", async || {
        names(&pick(&mut caller.clone(), of("shop/one", 9)).await.leases).len() == 3
    })
    .await;
    let all = pick(&mut caller, of("shop/one", 9)).await;
    assert_eq!(all.protocol(), fairmesh_wire::v1::service::Protocol::Http2);
    let addresses: BTreeMap<_, _> =
        all.leases.iter().map(|lease| (lease.instance.clone(), lease.address.clone())).collect();
    for server in &servers {
        assert!(addresses.values().any(|address| *address == server.address.to_string()));
    }

    let avoided = PickRequest { avoid: vec!["one-0".into(), "one-2".into()], ..of("shop/one", 1) };
    assert_eq!(names(&pick(&mut caller, avoided).await.leases), BTreeSet::from(["one-1"]));

    let failing = all.leases.iter().find(|lease| lease.instance == "one-1").unwrap().id;
    assert_eq!(
        report(&mut caller, Told { lease: failing, calls: 5, failures: 5, ..Told::default() }).await,
        0
    );
    let mut other = lookaside.caller().await;
    for _ in 0..20 {
        let picked = pick(&mut other, of("shop/one", 1)).await;
        assert_ne!(picked.leases[0].instance, "one-1", "it failed calls of another client");
    }
    let good = Told { lease: failing, calls: 1, done: true, ..Told::default() };
    assert_eq!((report(&mut caller, good).await, report(&mut caller, good).await), (0, 1), "it is over");

    for _ in 0..40 {
        pick(&mut other, of("shop/one", 3)).await;
    }
    let metrics = lookaside.page("/metrics").await;
    assert!(
        metrics.contains("fairmesh_lookaside_active_leases 100\n"),
        "no more than are counted: {metrics}"
    );
    let results = vec![Told::default(); 1025];
    let refused = other.report(ReportRequest { results }).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    let malformed = PickRequest { key: vec![1].into(), ..of("shop/one", 1) };
    assert_eq!(other.pick(malformed).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_clients_look_up_endpoints_by_route_lookup_service() {
    let _machine = beside_others().await;
    let world = World::start(SHARDED).await;
    let carts = Spec::new("shop/cart", "cart-1", Protocol::Http1).here(&world).await;
    world.serves("shop/cart", "cart-1").await;
    let lookaside = Lookaside::start(&world, "").await;
    let mut lookups = RouteLookupServiceClient::new(lookaside.channel().await);
    let request = |target_type: &str, pairs: &[(&str, &str)]| RouteLookupRequest {
        target_type: target_type.into(),
        key_map: pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        ..RouteLookupRequest::default()
    };
    let by_host = request("grpc", &[("service", "cart.shop"), ("key", "12"), ("role", "primary")]);
    let found = lookups.route_lookup(by_host).await.unwrap().into_inner();
    assert_eq!(found.targets, [carts.address.to_string()]);
    assert!(found.header_data.starts_with("service=shop/cart;revision="), "{}", found.header_data);
    assert!(found.header_data.ends_with(";key=12;role=primary"), "{}", found.header_data);
    for (wrong, code) in [
        (request("xds", &[("service", "shop/cart"), ("key", "12")]), Code::InvalidArgument),
        (request("grpc", &[("key", "12")]), Code::InvalidArgument),
        (request("", &[("service", "shop/cart")]), Code::InvalidArgument),
        (request("", &[("service", "shop/cart"), ("key", "20")]), Code::OutOfRange),
        (request("", &[("service", "shop/cart"), ("key", "2")]), Code::Unavailable),
        (request("", &[("service", "shop/nobody")]), Code::NotFound),
    ] {
        let refused = lookups.route_lookup(wrong).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lookaside_accepts_callers_only_between_sync_and_stop() {
    let _machine = beside_others().await;
    let mut world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    world.agent.kill().await;
    let mut lookaside = Lookaside::begin(&world, "");
    until("its pages are there", async || lookaside.page("/readyz").await.contains("503")).await;
    assert!(connect_channel(&Default::default(), &lookaside.address).await.is_err());
    world.agent.restart();
    until("it is ready", async || lookaside.page("/readyz").await.contains("200 OK")).await;
    let mut caller = lookaside.caller().await;
    assert_eq!(pick(&mut caller, of("shop/one", 2)).await.leases.len(), 1);
    lookaside.process.signal(Signal::TERM);
    // The caller's connection is open and idle: it receives GOAWAY and does not delay the drain.
    let ended = tokio::time::timeout(Duration::from_secs(9), lookaside.process.end()).await;
    assert!(ended.unwrap().success(), "{}", lookaside.process.log());
}
