use super::*;
use crate::replica_report::ServiceCounts;

/// Requests (or connections without a request) that use one CPU second.
const REQUESTS_PER_CORE: f64 = 1_000.0;
const CONNECTIONS_PER_CORE: f64 = 500.0;

fn service(name: &str) -> ServiceName {
    ServiceName::new(name).unwrap()
}

fn label(name: &str) -> Label {
    Label::new(name).unwrap()
}

/// Calls per second sent to a replica with one core.
#[derive(Clone, Debug, Default)]
struct Asked {
    requests: BTreeMap<ServiceName, u64>,
    connections: BTreeMap<ServiceName, u64>,
    /// CPU cost of a request, as a multiple of the usual cost.
    cost: f64,
}

impl Asked {
    fn of(requests: &[(&str, u64)]) -> Self {
        let requests = requests.iter().map(|(name, count)| (service(name), *count));
        Self { requests: requests.collect(), connections: BTreeMap::new(), cost: 1.0 }
    }

    fn report(&self, backend: &str, port: u16) -> Report {
        let requests: u64 = self.requests.values().sum();
        let accepted: u64 = self.connections.values().sum();
        let cores = requests as f64 * self.cost / REQUESTS_PER_CORE + accepted as f64 / CONNECTIONS_PER_CORE;
        let mut services = BTreeMap::<ServiceName, ServiceCounts>::new();
        for (name, count) in &self.requests {
            services.entry(name.clone()).or_default().requests = *count;
        }
        for (name, count) in &self.connections {
            services.entry(name.clone()).or_default().connections = *count;
        }
        Report {
            address: SocketAddr::from(([10, 0, 0, 1], port)),
            backend: Some(label(backend)),
            span: Duration::from_secs(1),
            cpu: Duration::from_secs_f64(cores.min(1.0)),
            limit_millicores: Some(1_000),
            memory: 1,
            open: 1,
            accepted,
            all: ServiceCounts { requests, errors: 0, connections: accepted },
            services,
            is_leaving: false,
            is_first: false,
            entry: None,
        }
    }
}

/// Backends with one replica each. Every replica reports once a second.
#[derive(Default)]
struct Fleet {
    board: LoadBoard,
    now_ms: u64,
}

impl Fleet {
    /// Lets all replicas report the same load for `seconds`.
    fn run(&mut self, asked: &[(&str, Asked)], seconds: u64) {
        for _ in 0..seconds {
            self.now_ms += 1_000;
            for (port, (backend, asked)) in (1..).zip(asked) {
                self.board.exchange(asked.report(backend, port), self.now_ms);
            }
            self.board.review(self.now_ms);
        }
    }

    fn cause(&self, backend: &str) -> Option<&Cause> {
        self.board.alerts().get(&label(backend)).map(|alert| &alert.cause)
    }
}

fn usual() -> Asked {
    Asked::of(&[("red/web", 100), ("blue/web", 100), ("blue/api", 50)])
}

#[test]
fn backend_load_within_limit_raises_no_alert() {
    let mut fleet = Fleet::default();
    fleet.run(&[("one", usual()), ("two", Asked::of(&[("red/web", 700)]))], 120);
    assert!(fleet.board.alerts().is_empty());
    let loads = fleet.board.backends(fleet.now_ms);
    let level = |name: &str| loads[&label(name)].utilisation().unwrap();
    assert!((level("one") - 0.25).abs() < 0.01 && (level("two") - 0.7).abs() < 0.01);
    let replicas: Vec<_> = fleet.board.replicas(fleet.now_ms).collect();
    assert_eq!(replicas.len(), 2);
    assert!((replicas[0].requests - 250.0).abs() < 1.0, "{replicas:?}");
}

#[test]
fn growing_service_is_named_as_cause_within_five_seconds() {
    let mut fleet = Fleet::default();
    fleet.run(&[("one", usual()), ("two", usual())], 60);
    let grown = Asked::of(&[("red/web", 800), ("blue/web", 110), ("blue/api", 50)]);
    fleet.run(&[("one", grown), ("two", usual())], 5);
    assert_eq!(fleet.cause("one"), Some(&Cause::Growth(service("red/web"))));
    assert_eq!(fleet.cause("two"), None);
}

#[test]
fn service_grown_on_all_alerted_backends_is_named_as_cause() {
    let mut fleet = Fleet::default();
    let one = Asked::of(&[("red/web", 100), ("blue/web", 200)]);
    let two = Asked::of(&[("red/web", 100), ("green/web", 200)]);
    fleet.run(&[("one", one), ("two", two)], 60);
    // Other services grow more, but each on only one of the backends.
    let one = Asked::of(&[("red/web", 350), ("blue/web", 600)]);
    let two = Asked::of(&[("red/web", 350), ("green/web", 600)]);
    fleet.run(&[("one", one), ("two", two)], 10);
    assert_eq!(fleet.cause("two"), Some(&Cause::Growth(service("red/web"))));
}

#[test]
fn idle_connections_are_named_as_cause_instead_of_growth() {
    let mut fleet = Fleet::default();
    fleet.run(&[("one", usual())], 60);
    let attacked = Asked { connections: [(service("blue/web"), 400)].into(), ..usual() };
    fleet.run(&[("one", attacked)], 5);
    assert_eq!(fleet.cause("one"), Some(&Cause::Connections(Some(service("blue/web")))));
}

#[test]
fn overload_by_costlier_requests_names_no_service_as_cause() {
    let mut fleet = Fleet::default();
    fleet.run(&[("one", usual())], 60);
    fleet.run(&[("one", Asked { cost: 3.8, ..usual() })], 8);
    assert_eq!(fleet.cause("one"), Some(&Cause::CostlierRequests));
}

#[test]
fn overload_without_usual_load_has_undetermined_cause() {
    let mut fleet = Fleet::default();
    fleet.run(&[("one", Asked::of(&[("red/web", 950)]))], 10);
    assert_eq!(fleet.cause("one"), Some(&Cause::Undetermined));
    // A starting replica receives its calls after a few seconds.
    let mut fleet = Fleet::default();
    fleet.run(&[("one", Asked::of(&[("red/web", 0)]))], 3);
    fleet.run(&[("one", Asked::of(&[("red/web", 950)]))], 10);
    assert_eq!(fleet.cause("one"), Some(&Cause::Undetermined));
}

#[test]
fn calls_taken_over_from_failed_replica_do_not_count_as_growth() {
    let mut fleet = Fleet::default();
    let web = || Asked::of(&[("red/web", 450)]);
    fleet.run(&[("one", web()), ("two", web())], 60);
    // The second replica is silent, and the first serves the calls of both.
    fleet.run(&[("one", Asked::of(&[("red/web", 900)]))], 60);
    assert_eq!(fleet.cause("one"), Some(&Cause::Undetermined));
}

#[test]
fn refused_requests_do_not_count_as_growth() {
    let mut fleet = Fleet::default();
    fleet.run(&[("one", usual())], 60);
    for _ in 0..10 {
        fleet.now_ms += 1_000;
        let mut report = Asked::of(&[("red/web", 800), ("blue/web", 100)]).report("one", 1);
        report.services.get_mut(&service("red/web")).unwrap().errors = 700;
        fleet.board.exchange(report, fleet.now_ms);
    }
    fleet.board.review(fleet.now_ms);
    assert_eq!(fleet.cause("one"), Some(&Cause::Undetermined));
}

#[test]
fn connection_attack_on_two_backends_does_not_count_as_growth() {
    let mut fleet = Fleet::default();
    fleet.run(&[("one", usual()), ("two", usual())], 60);
    let requests = Asked::of(&[("red/web", 160), ("blue/web", 100), ("blue/api", 50)]);
    let attacked = Asked { connections: [(service("red/web"), 400)].into(), ..requests };
    fleet.run(&[("one", attacked.clone()), ("two", attacked)], 8);
    for backend in ["one", "two"] {
        assert_eq!(fleet.cause(backend), Some(&Cause::Connections(Some(service("red/web")))));
    }
}

#[test]
fn overload_cause_is_cleared_when_calls_return_to_usual_rate() {
    let mut fleet = Fleet::default();
    fleet.run(&[("one", usual())], 60);
    fleet.run(&[("one", Asked::of(&[("red/web", 800), ("blue/web", 100)]))], 10);
    assert_eq!(fleet.cause("one"), Some(&Cause::Growth(service("red/web"))));
    // CPU use stays high for another reason.
    fleet.run(&[("one", Asked { cost: 3.8, ..usual() })], 20);
    assert_eq!(fleet.cause("one"), Some(&Cause::CostlierRequests));
}

#[test]
fn late_load_reports_do_not_change_usual_rates() {
    let mut fleet = Fleet::default();
    fleet.run(&[("one", usual())], 60);
    let grown = || Asked::of(&[("red/web", 800), ("blue/web", 100)]);
    fleet.run(&[("one", grown())], 8);
    fleet.now_ms += 60_000;
    fleet.board.review(fleet.now_ms);
    assert!(fleet.board.alerts().contains_key(&label("one")), "nothing is known of it meanwhile");
    let late =
        Report { span: Duration::from_secs(61), cpu: Duration::from_secs(58), ..grown().report("one", 1) };
    fleet.board.exchange(late, fleet.now_ms);
    fleet.run(&[("one", grown())], 5);
    assert_eq!(fleet.cause("one"), Some(&Cause::Growth(service("red/web"))));
}

#[test]
fn overload_alert_freezes_usual_rates_and_ends_below_safe_level() {
    let mut fleet = Fleet::default();
    fleet.run(&[("one", usual())], 60);
    let grown = |count: u64| Asked::of(&[("red/web", count), ("blue/web", 100), ("blue/api", 50)]);
    fleet.run(&[("one", grown(750))], 300);
    let trend = |fleet: &Fleet| {
        fleet.board.backends(fleet.now_ms)[&label("one")].services[&service("red/web")].requests
    };
    assert!(trend(&fleet).usual < 250.0, "five minutes of an alert are not usual: {:?}", trend(&fleet));
    fleet.run(&[("one", grown(500))], 20);
    assert!(fleet.cause("one").is_some(), "between both levels it goes on");
    fleet.run(&[("one", grown(400))], 20);
    assert_eq!(fleet.cause("one"), None);
    fleet.run(&[("one", grown(400))], 300);
    assert!(trend(&fleet).usual > 380.0, "afterwards the load is usual");
}

#[test]
fn silent_replica_is_removed_with_alert_of_its_backend() {
    let mut fleet = Fleet::default();
    fleet.run(&[("one", Asked::of(&[("red/web", 950)]))], 3);
    assert!(fleet.cause("one").is_some());
    let silent_ms = fleet.now_ms + 6_000;
    assert_eq!(fleet.board.replicas(silent_ms - 1).count(), 1);
    assert_eq!(fleet.board.replicas(silent_ms).count(), 0);
    assert!(fleet.board.backends(silent_ms).is_empty());
    fleet.board.review(fleet.now_ms + KEPT_MS);
    assert!(fleet.board.alerts().is_empty());
}

#[test]
fn leaving_gateway_replica_is_removed_at_once() {
    let mut fleet = Fleet::default();
    fleet.run(&[("one", usual())], 3);
    let leaving = Report { is_leaving: true, ..usual().report("one", 1) };
    fleet.board.exchange(leaving, fleet.now_ms);
    assert_eq!(fleet.board.replicas(fleet.now_ms).count(), 0);
}

#[test]
fn absurd_load_reports_use_bounded_memory_and_alert_no_other_backend() {
    let mut fleet = Fleet::default();
    fleet.run(&[("one", usual())], 10);
    for round in 0..50 {
        let names = (0..1_000).map(|i| (service(&format!("red/s{round}-{i}")), u64::MAX));
        let asked = Asked { requests: names.collect(), ..usual() };
        let report = Report {
            span: Duration::ZERO,
            cpu: Duration::MAX,
            memory: u64::MAX,
            ..Asked::report(&Asked { requests: BTreeMap::new(), ..asked.clone() }, "two", 2)
        };
        let services = asked.requests.keys().map(|name| {
            (name.clone(), ServiceCounts { requests: u64::MAX, errors: 0, connections: u64::MAX })
        });
        fleet.board.exchange(Report { services: services.collect(), ..report }, fleet.now_ms);
    }
    assert!(fleet.board.replicas.values().map(|one| one.services.len()).sum::<usize>() <= 4 * MAX_SERVICES);
    assert_eq!(fleet.cause("one"), None);
    for port in 0..u16::try_from(MAX_REPLICAS).unwrap() + 10 {
        fleet.board.exchange(usual().report("many", 10 + port), fleet.now_ms);
    }
    assert_eq!(fleet.board.replicas(fleet.now_ms).count(), MAX_REPLICAS);
    assert_eq!(fleet.board.left_out(), 12);
}

#[test]
fn limit_of_connections_is_twice_the_usual_at_the_busiest_replica() {
    let mut fleet = Fleet::default();
    let with = |connections| Asked { connections: [(service("blue/web"), connections)].into(), ..usual() };
    fleet.run(&[("one", with(20)), ("two", with(31))], 60);
    assert_eq!(fleet.board.connection_limit(&service("blue/web"), fleet.now_ms), 62);
    fleet.run(&[("one", with(20)), ("two", with(300))], 5);
    fleet.run(&[("one", with(20)), ("two", with(300))], 60);
    let limit = fleet.board.connection_limit(&service("blue/web"), fleet.now_ms);
    assert!((62..120).contains(&limit), "an attack is not usual: {limit}");
    assert_eq!(fleet.board.connection_limit(&service("red/quiet"), fleet.now_ms), LEAST_LIMIT);
}

#[test]
fn limited_connections_do_not_become_usual() {
    let mut fleet = Fleet::default();
    let attacked = Asked { connections: [(service("blue/web"), 400)].into(), ..usual() };
    fleet.run(&[("one", usual())], 60);
    fleet.run(&[("one", attacked.clone())], 10);
    let limit = fleet.board.connection_limit(&service("blue/web"), fleet.now_ms);
    fleet.board.set_limited([(service("blue/web"), Some(limit))].into(), fleet.now_ms);
    // The backend is within its CPU limits, since connections are refused.
    let refused = Report { cpu: Duration::from_millis(300), ..attacked.report("one", 1) };
    for _ in 0..150 {
        fleet.now_ms += 1_000;
        fleet.board.exchange(refused.clone(), fleet.now_ms);
        fleet.board.review(fleet.now_ms);
    }
    assert_eq!(fleet.cause("one"), None);
    let accepted = fleet.board.backends(fleet.now_ms)[&label("one")].accepted;
    assert!(accepted.usual < 50.0 && accepted.recent > 390.0, "{accepted:?}");
    fleet.board.set_limited(Limited::new(), fleet.now_ms);
    fleet.run(&[("one", attacked)], 5);
    assert_eq!(fleet.cause("one"), Some(&Cause::Connections(Some(service("blue/web")))));
    assert_eq!(fleet.board.connection_limit(&service("blue/web"), fleet.now_ms), limit);
}

#[test]
fn service_missing_in_full_report_has_at_most_the_rate_of_the_quietest() {
    let mut fleet = Fleet::default();
    let mut asked = Asked { cost: 0.1, ..Asked::default() };
    asked.requests = (1..MAX_SERVICES).map(|number| (service(&format!("red/s{number}")), 10)).collect();
    let quiet = (service("red/quiet"), 3);
    asked.requests.extend([quiet]);
    fleet.run(&[("one", asked.clone())], 20);
    asked.requests.remove(&service("red/quiet"));
    asked.requests.insert(service("red/surge"), 1_000);
    fleet.run(&[("one", asked.clone())], 20);
    asked.requests.remove(&service("red/surge"));
    asked.requests.insert(service("red/last"), 10);
    fleet.run(&[("one", asked)], 300);
    let services = &fleet.board.backends(fleet.now_ms)[&label("one")].services;
    let surge = services[&service("red/surge")].requests;
    assert!(surge.recent < 10.1 && surge.usual < 20.0, "{surge:?}");
    let quiet = services[&service("red/quiet")].requests;
    assert!((quiet.recent - 3.0).abs() < 0.01, "it may still have calls: {quiet:?}");
}

/// Replicas that report as often as they are told, each with its own second of the interval.
struct Crowd {
    board: LoadBoard,
    now_ms: u64,
    /// When each reports next, and when it did last.
    due: Vec<(u64, u64)>,
    reports: usize,
}

impl Crowd {
    /// All start within ten seconds.
    fn new(replicas: u64) -> Self {
        let start = |replica| 1_000 + replica * 10_000 / replicas;
        let due = (0..replicas).map(|replica| (start(replica), start(replica) - 1_000)).collect();
        Self { board: LoadBoard::default(), now_ms: 0, due, reports: 0 }
    }

    /// Ten replicas are a backend; `asked` says what each is asked for in a second. Silent ones report nothing.
    fn run(&mut self, seconds: u64, asked: impl Fn(usize) -> Option<Asked>) {
        for _ in 0..seconds * 10 {
            self.now_ms += 100;
            for (replica, (due_ms, last_ms)) in self.due.iter_mut().enumerate() {
                if *due_ms > self.now_ms {
                    continue;
                }
                let Some(asked) = asked(replica) else { continue };
                let span_ms = self.now_ms - *last_ms;
                let port = u16::try_from(replica).unwrap() + 1;
                let mut report = asked.report(&format!("gw-{}", replica / 10), port);
                let scaled = |count: u64| count * span_ms / 1_000;
                report.cpu = report.cpu * u32::try_from(span_ms).unwrap() / 1_000;
                report.span = Duration::from_millis(span_ms);
                report.accepted = scaled(report.accepted);
                for counts in report.services.values_mut().chain([&mut report.all]) {
                    counts.requests = scaled(counts.requests);
                    counts.connections = scaled(counts.connections);
                }
                let next = self.board.exchange(report, self.now_ms);
                *last_ms = self.now_ms;
                *due_ms = self.now_ms + u64::try_from(next.as_millis()).unwrap();
                self.reports += 1;
            }
            if self.now_ms.is_multiple_of(2_000) {
                self.board.review(self.now_ms);
            }
        }
    }
}

#[test]
fn load_board_spaces_reports_of_two_thousand_replicas_and_finds_causes() {
    // Two backends have a service that no other has.
    let grown = |replica: usize, own: u64| match replica / 10 {
        3 | 4 => Asked::of(&[("green/web", own), ("blue/web", 100), ("blue/api", 50)]),
        _ => usual(),
    };
    let as_usual = |replica| Some(grown(replica, 100));
    let mut crowd = Crowd::new(2_000);
    crowd.run(120, as_usual);
    assert_eq!(crowd.board.interval(), Duration::from_secs(10));
    assert!(crowd.board.alerts().is_empty());
    assert_eq!(crowd.board.replicas(crowd.now_ms).count(), 2_000, "none counts as silent");
    crowd.reports = 0;
    crowd.run(30, as_usual);
    assert!((5_900..=6_100).contains(&crowd.reports), "200 reports a second: {}", crowd.reports);
    let rate = crowd.board.backends(crowd.now_ms)[&label("gw-7")].all.requests;
    assert!((rate.recent - 2_500.0).abs() < 25.0 && (rate.usual - 2_500.0).abs() < 25.0, "{rate:?}");

    // Its calls grow, and a third backend is attacked.
    let overloaded = |replica: usize| {
        Some(match replica / 10 {
            9 => Asked { connections: [(service("blue/web"), 400)].into(), ..usual() },
            _ => grown(replica, 800),
        })
    };
    crowd.run(22, overloaded);
    let cause = |name: &str| crowd.board.alerts().get(&label(name)).map(|alert| alert.cause.clone());
    assert_eq!(cause("gw-3"), Some(Cause::Growth(service("green/web"))));
    assert_eq!(cause("gw-4"), Some(Cause::Growth(service("green/web"))));
    assert_eq!(cause("gw-9"), Some(Cause::Connections(Some(service("blue/web")))));
    assert_eq!(crowd.board.alerts().len(), 3);
    crowd.run(60, as_usual);
    assert!(crowd.board.alerts().is_empty());
    // A replica is silent after three missed reports, and not before.
    let but_first = |replica: usize| (replica > 0).then(|| grown(replica, 100));
    crowd.run(19, but_first);
    assert_eq!(crowd.board.replicas(crowd.now_ms).count(), 2_000);
    crowd.run(15, but_first);
    assert_eq!(crowd.board.replicas(crowd.now_ms).count(), 1_999);
}

#[test]
fn a_few_replicas_report_each_second() {
    let mut crowd = Crowd::new(200);
    crowd.run(10, |_| Some(usual()));
    assert_eq!(crowd.board.interval(), INTERVAL);
}

fn crashed(fleet: &Fleet) -> BTreeSet<Label> {
    fleet.board.crashed().into_keys().collect()
}

#[test]
fn only_services_with_calls_just_before_are_callers_of_a_crash() {
    let mut fleet = Fleet::default();
    let both = Asked::of(&[("red/web", 10), ("blue/web", 10)]);
    fleet.run(&[("one", both.clone()), ("one", both)], 10);
    let only = || Asked::of(&[("red/web", 10)]);
    fleet.run(&[("one", Asked::of(&[("red/web", 10), ("blue/web", 1)])), ("one", only())], 30);
    for port in [1, 2] {
        let restarted = Report { is_first: true, ..only().report("one", port) };
        fleet.board.exchange(restarted, fleet.now_ms);
        let callers = fleet.board.crashed().remove(&label("one")).unwrap();
        assert_eq!(
            callers.contains(&service("blue/web")),
            port == 1,
            "it had calls at the first replica alone"
        );
        assert!(callers.contains(&service("red/web")));
    }
}

#[test]
fn replica_that_crashes_again_without_calls_keeps_callers_of_its_last_crash() {
    let mut fleet = Fleet::default();
    let none = || Asked::of(&[]);
    fleet.run(&[("one", Asked::of(&[("red/web", 10)]))], 10);
    for _ in 0..2 {
        let restarted = Report { is_first: true, ..none().report("one", 1) };
        fleet.board.exchange(restarted, fleet.now_ms);
        assert_eq!(fleet.board.crashed()[&label("one")], [service("red/web")].into());
        fleet.run(&[("one", none())], 60);
    }
}

#[test]
fn replica_that_ends_without_a_word_counts_as_crashed() {
    let mut fleet = Fleet::default();
    let asked = [("one", usual()), ("two", usual()), ("three", usual())];
    fleet.run(&asked, 10);
    assert_eq!(crashed(&fleet), BTreeSet::new());
    // The second one restarts within a second; the third one leaves, and starts again.
    let first = |name: &str, port| Report { is_first: true, ..usual().report(name, port) };
    fleet.board.exchange(first("two", 2), fleet.now_ms);
    fleet.board.exchange(Report { is_leaving: true, ..usual().report("three", 3) }, fleet.now_ms);
    fleet.board.exchange(first("three", 3), fleet.now_ms);
    assert_eq!(crashed(&fleet), [label("two")].into());
    // The first one becomes silent, which counts once, however long it lasts.
    let mut seconds = |count: u64| {
        for _ in 0..count {
            fleet.now_ms += 1_000;
            for (port, name) in [(2, "two"), (3, "three")] {
                fleet.board.exchange(usual().report(name, port), fleet.now_ms);
            }
            fleet.board.review(fleet.now_ms);
        }
        crashed(&fleet)
    };
    assert_eq!(seconds(11), [label("two")].into(), "it may lack CPU");
    assert_eq!(seconds(CRASHED_FOR.as_secs() - 12), [label("one"), label("two")].into());
    assert_eq!(seconds(1), [label("one")].into());
    assert_eq!(seconds(11), [label("one")].into());
    assert_eq!(seconds(1), BTreeSet::new());
}

#[test]
fn replica_that_reports_again_after_a_pause_has_not_crashed() {
    let mut fleet = Fleet::default();
    fleet.run(&[("one", usual())], 10);
    fleet.now_ms += 15_000;
    fleet.board.review(fleet.now_ms);
    assert_eq!(crashed(&fleet), [label("one")].into());
    fleet.run(&[("one", usual())], 1);
    assert_eq!(crashed(&fleet), BTreeSet::new());
}
