use std::fs;

use fairmesh_model::Record;
use tempfile::TempDir;

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

fn label(name: &str) -> Label {
    Label::new(name).unwrap()
}

/// Records of backends, and a control plane that may start more of them. The launcher notes each of its runs.
struct World {
    rounds: LaunchRounds,
    backends: BTreeMap<Label, GatewayBackend>,
    launching: BTreeMap<Label, u64>,
    reporting: BTreeSet<SocketAddr>,
    revision: u64,
    now: Instant,
    folder: TempDir,
}

impl World {
    /// `command` follows the note of the run.
    fn new(command: &str, time_limit: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runs = folder.path().join("runs");
        let command = format!(
            "echo $FAIRMESH_BACKEND $FAIRMESH_ZONE $FAIRMESH_SERVICE >> {}; {command}",
            runs.display()
        );
        let backend = GatewayBackend {
            zone: Zone::new("a").unwrap(),
            capacity: 10,
            replicas: ["10.0.0.1:1".parse().unwrap()].into(),
            is_closed: false,
            is_sandbox: false,
        };
        Self {
            rounds: LaunchRounds::new(Some(GatewayLauncher { command, time_limit, secrets: Vec::new() })),
            backends: [(label("gw-1"), backend)].into(),
            launching: BTreeMap::new(),
            reporting: BTreeSet::new(),
            revision: 1,
            now: Instant::now(),
            folder,
        }
    }

    /// What the launcher was run for.
    fn runs(&self) -> Vec<String> {
        let runs = fs::read_to_string(self.folder.path().join("runs")).unwrap_or_default();
        runs.lines().map(str::to_owned).collect()
    }

    /// A round after so many seconds, without bringing its write into force. `red/web` may lack a backend in zone a.
    fn decide(&mut self, seconds: u64, is_lacking: bool) -> (Option<Write>, Vec<Refusal>) {
        self.decide_for(seconds, if is_lacking { &["a"] } else { &[] })
    }

    /// A round in which a service lacks a backend in each of these zones: `red/web` in a, `blue/web` in others.
    fn decide_for(&mut self, seconds: u64, zones: &[&str]) -> (Option<Write>, Vec<Refusal>) {
        self.now += Duration::from_secs(seconds);
        let [red, blue] = ["red/web", "blue/web"].map(|name| ServiceName::new(name).unwrap());
        let zones: Vec<_> = zones.iter().map(|zone| Zone::new(*zone).unwrap()).collect();
        let service_of = |zone: &Zone| if zone.as_str() == "a" { &red } else { &blue };
        self.rounds.round(&LaunchFacts {
            backends: &self.backends,
            launching: &self.launching,
            lacking: &zones.iter().map(|zone| (zone, service_of(zone))).collect(),
            reporting: &self.reporting,
            now: self.now,
        })
    }

    /// A round whose write comes into force, and what it refuses. Returns what became of the backend.
    fn round(&mut self, seconds: u64, is_lacking: bool) -> (Option<String>, Vec<Refusal>) {
        self.round_for(seconds, if is_lacking { &["a"] } else { &[] })
    }

    fn round_for(&mut self, seconds: u64, zones: &[&str]) -> (Option<String>, Vec<Refusal>) {
        let (write, refused) = self.decide_for(seconds, zones);
        let Some(Write { subject, ops, .. }) = write else { return (None, refused) };
        let key = RecordKey::parse(&ops[0].key).unwrap();
        let RecordKey::GatewayBackend(name) = &key else { panic!("{key:?}") };
        let expected =
            self.launching.get(name).map_or(Expect::Absent, |revision| Expect::Revision(*revision));
        assert_eq!(ops[0].expect, expected);
        self.revision += 1;
        self.launching.remove(name);
        let outcome = match &ops[0].value {
            None => {
                self.backends.remove(name);
                format!("{name} is deleted")
            }
            Some(value) => {
                let Ok(Record::GatewayBackend(backend)) = record_encoding::decode(&key, value) else {
                    panic!("{key:?}")
                };
                let text = format!("{name} has {} replicas", backend.replicas.len());
                if backend.replicas.is_empty() {
                    self.launching.insert(name.clone(), self.revision);
                }
                self.backends.insert(name.clone(), backend);
                text
            }
        };
        self.rounds.written(&subject);
        (Some(outcome), refused)
    }

    /// Lets a service lack a backend until the launcher has run.
    async fn launch(&mut self) {
        assert_eq!(self.round(0, true).0, None, "not at once");
        assert_eq!(self.round(10, true).0.as_deref(), Some("launched-1 has 0 replicas"));
        self.rounds.ended.notified().await;
    }
}

const PRINTS: &str = "echo 10.0.1.1:1; echo 10.0.1.2:1";

#[tokio::test]
async fn lacking_backend_is_started_once_and_registered() {
    let mut world = World::new(PRINTS, LIMIT);
    assert!(world.round(0, false).0.is_none() && !world.rounds.is_pending());
    world.launch().await;
    assert!(world.rounds.is_pending());
    assert_eq!(world.round(0, true).0.as_deref(), Some("launched-1 has 2 replicas"));
    assert_eq!(world.runs(), ["launched-1 a red/web"]);
    // It does not report, so that no other one is started.
    world.round(0, true);
    let (write, refused) = world.round(60, true);
    assert!(write.is_none() && refused[0].reason.contains("not all of its replicas report"), "{refused:?}");
    assert_eq!(refused[0].subject, "launch of launched-1");
    assert!(world.round(0, false).1.is_empty(), "nothing is lacking any more");
    world.reporting = ["10.0.1.1:1", "10.0.1.2:1"].map(|address| address.parse().unwrap()).into();
    world.round(0, true);
    assert_eq!(world.round(10, true).0.as_deref(), Some("launched-2 has 0 replicas"));
}

#[tokio::test]
async fn failed_launcher_runs_again_after_longer_pauses() {
    let mut world = World::new("echo no quota >&2; exit 1", LIMIT);
    world.launch().await;
    for (number, pause) in [(1, 10), (2, 20), (3, 40)] {
        let (write, refused) = world.round(0, true);
        assert!(write.is_none());
        let reason = &refused[0].reason;
        assert!(reason.contains("in zone a for red/web") && reason.contains("no quota"), "{reason}");
        assert_eq!(world.round(pause - 1, true).0, None, "after failure {number}");
        assert_eq!(world.round(1, true).0.as_deref(), Some("launched-1 has 0 replicas"));
        world.rounds.ended.notified().await;
    }
    assert_eq!(world.runs().len(), 4);
    assert_eq!(world.round(0, false).0, None);
    assert_eq!(world.round(80, false).0.as_deref(), Some("launched-1 is deleted"));
    assert!(world.round(0, false).1.is_empty() && !world.rounds.is_pending());
    assert_eq!(world.runs().len(), 4);
}

#[tokio::test]
async fn launch_that_fails_in_one_zone_delays_no_other_zone() {
    let mut world = World::new("test $FAIRMESH_ZONE = b && echo 10.0.2.1:1", LIMIT);
    world.launch().await;
    assert_eq!(world.round_for(0, &["a", "b"]).0, None, "the pause after the failure in zone a");
    let (started, refused) = world.round_for(9, &["a", "b"]);
    assert!(started.is_none() && refused[0].reason.contains("in zone a for red/web"), "{refused:?}");
    // Zone b has lacked a backend for ten seconds when zone a's pause is over, which comes first.
    assert_eq!(world.round_for(1, &["a", "b"]).0.as_deref(), Some("launched-1 has 0 replicas"));
    world.rounds.ended.notified().await;
    assert_eq!(world.round_for(0, &["a", "b"]).0.as_deref(), Some("launched-2 has 0 replicas"));
    world.rounds.ended.notified().await;
    assert_eq!(world.round_for(0, &["a", "b"]).0.as_deref(), Some("launched-2 has 1 replicas"));
    assert_eq!(world.runs(), ["launched-1 a red/web", "launched-1 a red/web", "launched-2 b blue/web"]);
}

#[tokio::test]
async fn failed_launch_is_deleted_once_its_zone_lacks_nothing() {
    let mut world = World::new("exit 1", LIMIT);
    world.launch().await;
    world.round_for(0, &["b"]);
    assert_eq!(world.round_for(10, &["b"]).0.as_deref(), Some("launched-1 is deleted"));
    assert_eq!(world.round_for(0, &["b"]).0.as_deref(), Some("launched-1 has 0 replicas"));
    world.rounds.ended.notified().await;
    assert_eq!(world.runs(), ["launched-1 a red/web", "launched-1 b blue/web"]);
}

#[tokio::test]
async fn silent_backend_in_one_zone_delays_no_other_zone() {
    let mut world = World::new(PRINTS, LIMIT);
    world.launch().await;
    assert_eq!(world.round(0, true).0.as_deref(), Some("launched-1 has 2 replicas"));
    assert_eq!(world.round_for(0, &["a", "b"]).0, None);
    let (started, refused) = world.round_for(10, &["a", "b"]);
    assert_eq!(started.as_deref(), Some("launched-2 has 0 replicas"));
    assert!(refused[0].reason.contains("not all of its replicas report"), "{refused:?}");
}

#[tokio::test]
async fn command_of_a_deleted_launch_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let mut world = World::new(&format!("echo $$ > {}; sleep 1000", file.display()), LIMIT);
    world.round(0, true);
    assert_eq!(world.round(10, true).0.as_deref(), Some("launched-1 has 0 replicas"));
    let shell = loop {
        match fs::read_to_string(&file).map(|text| text.trim().to_owned()) {
            Ok(pid) if !pid.is_empty() => break pid,
            _ => tokio::task::yield_now().await,
        }
    };
    world.backends.remove(&label("launched-1"));
    world.launching.clear();
    assert_eq!(world.round(0, true).0, None);
    // A killed process may wait for its parent.
    let stat = format!("/proc/{shell}/stat");
    while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
        tokio::task::yield_now().await;
    }
    assert_eq!(world.round(10, true).0.as_deref(), Some("launched-1 has 0 replicas"), "it begins anew");
}

#[tokio::test]
async fn launcher_that_hangs_is_a_failure() {
    let mut world = World::new("sleep 1000", Duration::from_millis(300));
    world.launch().await;
    let (_, refused) = world.round(0, true);
    assert!(refused[0].reason.contains("took longer than 300ms"), "{refused:?}");
}

#[tokio::test]
async fn launcher_that_gives_replicas_of_another_backend_has_failed() {
    let mut world = World::new("echo 10.0.0.1:1", LIMIT);
    world.launch().await;
    let (write, refused) = world.round(0, true);
    assert!(
        write.is_none() && refused[0].reason.contains("10.0.0.1:1, which is a replica of gw-1"),
        "{refused:?}"
    );
}

#[tokio::test]
async fn launch_goes_on_with_the_same_backend_after_a_takeover() {
    let mut world = World::new(PRINTS, LIMIT);
    world.round(0, true);
    world.round(10, true);
    // The launcher of the control plane that ended may still run for its time limit.
    world.rounds = LaunchRounds::new(world.rounds.launcher.clone());
    for seconds in [0, 5, 14] {
        assert_eq!(world.round(seconds, false).0, None);
        assert!(world.rounds.is_pending());
    }
    assert_eq!(world.round(1, false).0.as_deref(), Some("launched-1 has 0 replicas"));
    world.rounds.ended.notified().await;
    assert_eq!(world.round(0, false).0.as_deref(), Some("launched-1 has 2 replicas"));
    assert!(world.runs().iter().all(|run| run.starts_with("launched-1 a")), "{:?}", world.runs());
    assert_eq!(world.backends.len(), 2);
}

#[tokio::test]
async fn launcher_does_not_run_unless_its_record_was_written() {
    let mut world = World::new(PRINTS, LIMIT);
    world.round(0, true);
    // Another control plane has the lease.
    assert!(world.decide(10, true).0.is_some() && world.decide(2, true).0.is_some());
    assert!(world.runs().is_empty());
    // That one has written the record, and its launcher runs.
    let revision = 7;
    let backend = GatewayBackend { replicas: BTreeSet::new(), ..world.backends[&label("gw-1")].clone() };
    world.backends.insert(label("launched-1"), backend);
    world.launching.insert(label("launched-1"), revision);
    assert!(world.decide(LIMIT.as_secs() - 1, true).0.is_none());
}

#[tokio::test]
async fn nothing_is_started_without_a_launcher() {
    let mut world = World::new(PRINTS, LIMIT);
    world.rounds = LaunchRounds::new(None);
    assert!(world.decide(0, true).0.is_none() && world.decide(60, true).0.is_none());
    assert!(!world.rounds.is_pending());
}
