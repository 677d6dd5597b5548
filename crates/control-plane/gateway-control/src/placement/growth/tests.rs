use fairmesh_model::{PlacementPin, Throttle, Zone};
use fairmesh_wire::v1;

use super::*;
use crate::loads::tests::loads_of;

fn service(name: &str) -> ServiceName {
    ServiceName::new(name).unwrap()
}

fn placement(added: u32) -> Placement {
    let zone = Zone::new("a").unwrap();
    let backends = ["one", "two"].map(|name| Label::new(name).unwrap());
    Placement {
        home_zone: zone.clone(),
        zones: [(zone, backends.into())].into(),
        added,
        pinned: None,
        connection_limit: None,
    }
}

/// Two backends with one replica each.
struct World {
    rounds: GrowthRounds,
    loads: GatewayLoads,
    backends: BTreeMap<Label, GatewayBackend>,
    wanted: GatewayService,
}

impl World {
    fn new() -> Self {
        let loads = loads_of(&["one", "two"]);
        let backend = |port: u16| GatewayBackend {
            zone: Zone::new("a").unwrap(),
            capacity: 10,
            replicas: [SocketAddr::from(([10, 0, 0, 1], port))].into(),
            is_closed: false,
            is_sandbox: false,
        };
        let backends =
            [("one", 1), ("two", 2)].map(|(name, port)| (Label::new(name).unwrap(), backend(port)));
        let home_zone = Zone::new("a").unwrap();
        let wanted = GatewayService { home_zone, backends: 3, grows: true, throttle: Throttle::Ask };
        Self { rounds: GrowthRounds::new(loads.clone()), loads, backends: backends.into(), wanted }
    }

    fn report(&self, backend: &str, cpu_ms: u64, requests: u64) {
        let port = if backend == "one" { 1 } else { 2 };
        let counts = v1::GatewayServiceCounts { service: "red/web".into(), requests, ..Default::default() };
        let request = v1::ReportGatewayRequest {
            address: format!("10.0.0.1:{port}"),
            backend: backend.into(),
            span_ms: 1_000,
            cpu_us: cpu_ms * 1_000,
            limit_millicores: 1_000,
            services: vec![counts],
            requests,
            ..Default::default()
        };
        self.loads.exchange(request).unwrap();
    }

    /// Lets both backends report for `seconds`. Returns whether a placement may have to change at the end.
    async fn run(&mut self, seconds: u64, one: (u64, u64), two: Option<(u64, u64)>) -> bool {
        let mut is_due = false;
        for _ in 0..seconds {
            tokio::time::advance(Duration::from_secs(1)).await;
            self.report("one", one.0, one.1);
            if let Some((cpu_ms, requests)) = two {
                self.report("two", cpu_ms, requests);
            }
            is_due = self.rounds.look(Instant::now());
        }
        is_due
    }

    /// Runs a round, and applies its decision.
    fn decide(&mut self, placed: &mut Placement) {
        let (name, now) = (service("red/web"), Instant::now());
        let placements = [(&*placed, &name, &self.wanted)].into_iter();
        let growth = self.rounds.round(placements, &self.backends, now);
        let added = growth.added(&name, placed, 3);
        if added != placed.added {
            placed.added = added;
            self.rounds.changed(name, now);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn growing_service_gets_one_backend_then_pauses() {
    let mut world = World::new();
    let mut placed = placement(0);
    assert!(!world.run(30, (200, 100), Some((200, 100))).await);
    assert!(world.run(10, (950, 500), Some((950, 500))).await);
    world.decide(&mut placed);
    assert_eq!(placed.added, 1);
    assert!(!world.rounds.look(Instant::now()));
    world.decide(&mut placed);
    assert_eq!(placed.added, 1, "others cause rounds meanwhile");
    assert!(world.run(PAUSE.as_secs(), (950, 500), Some((950, 500))).await);
    for added in [2, 3, 3, 3] {
        world.decide(&mut placed);
        assert_eq!(placed.added, added, "as many again at most");
        world.run(PAUSE.as_secs(), (950, 500), Some((950, 500))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn service_does_not_grow_while_one_of_its_replicas_is_silent() {
    let mut world = World::new();
    let mut placed = placement(0);
    world.run(30, (400, 200), Some((400, 200))).await;
    // The first backend has the calls of both.
    world.run(300, (950, 900), None).await;
    world.decide(&mut placed);
    assert_eq!(placed.added, 0);
}

#[tokio::test(start_paused = true)]
async fn service_gives_added_backend_back_after_ten_quiet_minutes() {
    let mut world = World::new();
    let mut placed = placement(2);
    world.decide(&mut placed);
    assert!(!world.run(300, (100, 100), Some((400, 100))).await, "one of two would have too much");
    assert!(!world.run(590, (100, 100), Some((100, 100))).await);
    assert!(world.run(30, (100, 100), Some((100, 100))).await);
    world.decide(&mut placed);
    assert_eq!(placed.added, 1);
    world.run(30, (100, 100), Some((100, 100))).await;
    world.decide(&mut placed);
    assert_eq!(placed.added, 1, "the next one after ten minutes again");
}

#[tokio::test(start_paused = true)]
async fn service_keeps_its_added_backend_while_load_is_unknown() {
    let mut world = World::new();
    let mut placed = placement(1);
    world.decide(&mut placed);
    world.run(900, (100, 100), None).await;
    world.decide(&mut placed);
    assert_eq!(placed.added, 1);
}

#[tokio::test(start_paused = true)]
async fn service_whose_growth_is_off_gets_no_backend_and_gives_back_what_it_has() {
    let mut world = World::new();
    world.wanted.grows = false;
    let mut placed = placement(1);
    world.decide(&mut placed);
    world.run(30, (200, 100), Some((200, 100))).await;
    assert!(!world.run(30, (950, 500), Some((950, 500))).await, "no round is needed");
    world.decide(&mut placed);
    assert_eq!(placed.added, 1);
    world.run(60, (100, 50), Some((100, 50))).await;
    assert!(world.run(600, (100, 50), Some((100, 50))).await);
    world.decide(&mut placed);
    assert_eq!(placed.added, 0);
}

#[tokio::test(start_paused = true)]
async fn service_that_an_operator_placed_does_not_grow() {
    let mut world = World::new();
    let mut placed = Placement { pinned: Some(PlacementPin::default()), ..placement(0) };
    world.decide(&mut placed);
    world.run(30, (200, 100), Some((200, 100))).await;
    assert!(!world.run(30, (950, 500), Some((950, 500))).await);
    world.decide(&mut placed);
    assert_eq!(placed.added, 0);
    placed.pinned = None;
    world.decide(&mut placed);
    assert_eq!(placed.added, 1, "it grows once it is placed by the controller again");
}
