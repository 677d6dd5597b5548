use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, UNIX_EPOCH},
};

use fairmesh_model::{
    HealthCheck, Region, ServiceName, Verdict,
    arith::{hash_text, mix_pair},
    bounded_cause,
};
use fairmesh_rib::Update;
use fairmesh_wire::{
    handshake::Connection,
    v1::{JudgeRequest, Judgement},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tonic::{Code, Status};

use super::{
    Counts,
    facts::{Facts, Who},
    judge::{Finding, Judge},
    probe::look,
};
use crate::disk::wall_clock;

/// How many probes are under way at most; a region with more endpoints than fit within their intervals is probed more
/// slowly, and never by more.
const AT_ONCE: usize = 64;
/// How many verdicts are told in one call.
const TOLD_AT_ONCE: usize = 500;
/// How long such a call may take, and how long to wait after one that failed.
const TELLING: Duration = Duration::from_secs(5);
const TELL_AGAIN: Duration = Duration::from_secs(1);

/// One term of the office.
pub(super) struct Rounds {
    region: Region,
    term: u64,
    connection: Connection,
    facts: Facts,
    counts: Arc<Counts>,
    targets: HashMap<Who, Target>,
    /// Who is probed next; without those whose probe is under way.
    due: BTreeSet<(Instant, Who)>,
    probes: JoinSet<Probed>,
    /// What the control plane has not taken yet.
    news: BTreeMap<Who, Verdict>,
    telling: JoinSet<(BTreeMap<Who, Verdict>, Result<(), Status>)>,
    tell_at: Instant,
}

struct Target {
    address: SocketAddr,
    check: HealthCheck,
    judge: Judge,
    /// Probes begun; with the name it makes the chance of the jitter.
    begun: u64,
    since_ms: u64,
}

/// A probe that has ended.
struct Probed {
    who: Who,
    /// Which probe of its target it was: a target that was made anew has begun none.
    number: u64,
    began: Instant,
    answer: Result<(), String>,
}

impl Rounds {
    pub(super) fn new(
        region: Region,
        term: u64,
        connection: Connection,
        facts: Facts,
        counts: Arc<Counts>,
    ) -> Self {
        Self {
            region,
            term,
            connection,
            facts,
            counts,
            targets: HashMap::new(),
            due: BTreeSet::new(),
            probes: JoinSet::new(),
            news: BTreeMap::new(),
            telling: JoinSet::new(),
            tell_at: Instant::now(),
        }
    }

    /// Probes and tells until the control plane says that somebody else does.
    pub(super) async fn run(
        mut self,
        mut updates: mpsc::UnboundedReceiver<Update>,
        mut services: watch::Receiver<BTreeSet<ServiceName>>,
    ) {
        let listed = services.borrow_and_update().clone();
        self.facts.follow(listed);
        loop {
            self.tell();
            let next = self.due.first().map(|(at, _)| *at).filter(|_| self.probes.len() < AT_ONCE);
            let waiting = !self.news.is_empty() && self.telling.is_empty();
            tokio::select! {
                Some(update) = updates.recv() => {
                    self.facts.update(update);
                    self.refresh();
                }
                Ok(()) = services.changed() => {
                    let listed = services.borrow_and_update().clone();
                    self.facts.follow(listed);
                    self.refresh();
                }
                () = sleep_until(next.unwrap_or(self.tell_at)), if next.is_some() => self.probe(),
                Some(Ok(probed)) = self.probes.join_next() => self.take(probed),
                Some(Ok((told, answer))) = self.telling.join_next() => {
                    if !self.told(told, answer) {
                        return;
                    }
                }
                () = sleep_until(self.tell_at), if waiting => {}
            }
        }
    }

    /// Makes the targets what the facts say. What is new is probed first somewhere within its interval.
    fn refresh(&mut self) {
        let now = Instant::now();
        let wanted: HashMap<Who, (SocketAddr, HealthCheck)> =
            self.facts.wanted().map(|(who, address, check)| (who, (address, check.clone()))).collect();
        self.targets.retain(|who, target| {
            wanted
                .get(who)
                .is_some_and(|(address, check)| *address == target.address && *check == target.check)
        });
        self.due.retain(|(_, who)| self.targets.contains_key(who));
        self.news.retain(|who, _| self.targets.contains_key(who));
        for (who, (address, check)) in wanted {
            if !self.targets.contains_key(&who) {
                let chance = chance(&who, 0);
                let within = check.interval.as_nanos().max(1);
                let wait = Duration::from_nanos((u128::from(chance) % within) as u64);
                self.due.insert((now + wait, who.clone()));
                let target = Target { address, check, judge: Judge::default(), begun: 0, since_ms: 0 };
                self.targets.insert(who, target);
            }
        }
        self.counts.endpoints.store(self.targets.len() as u64, Relaxed);
    }

    /// Begins the probe that is due.
    fn probe(&mut self) {
        let Some((_, who)) = self.due.pop_first() else { return };
        let Some(target) = self.targets.get_mut(&who) else { return };
        target.begun += 1;
        let (number, address) = (target.begun, target.address);
        let (probe, patience) = (target.check.probe.clone(), target.check.timeout);
        self.counts.probes.fetch_add(1, Relaxed);
        self.probes.spawn(async move {
            let began = Instant::now();
            let answer = look(&probe, address, patience).await;
            Probed { who, number, began, answer }
        });
    }

    /// Takes in how a probe ended, and plans the next.
    fn take(&mut self, Probed { who, number, began, answer }: Probed) {
        if answer.is_err() {
            self.counts.failures.fetch_add(1, Relaxed);
        }
        let Some(target) = self.targets.get_mut(&who).filter(|target| target.begun == number) else { return };
        if let Some(finding) = target.judge.sample(answer.is_ok(), &target.check) {
            let verdict = target.verdict(finding, answer.err());
            tracing::info!(service = %who.0, instance = %who.1, healthy = verdict.healthy, cause = verdict.cause, "found");
            self.news.insert(who.clone(), verdict);
        }
        let next = began + target.wait(&who);
        self.due.insert((next.max(Instant::now()), who));
    }

    /// Tells the control plane what is new, one call at a time.
    fn tell(&mut self) {
        if self.news.is_empty() || !self.telling.is_empty() || Instant::now() < self.tell_at {
            return;
        }
        let mut told = BTreeMap::new();
        while told.len() < TOLD_AT_ONCE {
            let Some((who, verdict)) = self.news.pop_first() else { break };
            told.insert(who, verdict);
        }
        let judgement = |((service, instance), verdict): (&Who, &Verdict)| Judgement {
            service: service.to_string(),
            instance: instance.to_string(),
            verdict: Some(verdict.clone().into()),
        };
        let judgements = told.iter().map(judgement).collect();
        let request = JudgeRequest { region: self.region.to_string(), term: self.term, judgements };
        let mut checker = self.connection.checker();
        self.telling.spawn(async move {
            let answer = timeout(TELLING, checker.judge(request)).await;
            let late = |_| Err(Status::deadline_exceeded("no answer from the control plane"));
            (told, answer.unwrap_or_else(late).map(drop))
        });
    }

    /// What became of a call; false when the office is lost.
    fn told(&mut self, told: BTreeMap<Who, Verdict>, answer: Result<(), Status>) -> bool {
        match answer {
            Ok(()) => _ = self.counts.verdicts.fetch_add(told.len() as u64, Relaxed),
            Err(status) if status.code() == Code::FailedPrecondition => return false,
            Err(status) => {
                tracing::warn!(%status, "the control plane does not take verdicts; telling it again");
                for (who, verdict) in told.into_iter().filter(|(who, _)| self.targets.contains_key(who)) {
                    // What was found meanwhile is newer.
                    self.news.entry(who).or_insert(verdict);
                }
                self.tell_at = Instant::now() + TELL_AGAIN;
            }
        }
        true
    }
}

impl Target {
    fn verdict(
        &mut self,
        Finding { healthy, confidence, turned }: Finding,
        cause: Option<String>,
    ) -> Verdict {
        if turned {
            let since = wall_clock().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.since_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        }
        let cause = bounded_cause(&cause.unwrap_or_default());
        Verdict { healthy, since_ms: self.since_ms, confidence, cause, stale: false }
    }

    /// From the beginning of a probe to that of the next: the interval, more or less.
    fn wait(&self, who: &Who) -> Duration {
        let jitter = self.check.jitter_percent;
        let percent = 100 - jitter + (chance(who, self.begun) % u64::from(2 * jitter + 1)) as u32;
        self.check.interval * percent / 100
    }
}

/// A number that nobody foresees and everybody can repeat.
fn chance((service, instance): &Who, number: u64) -> u64 {
    mix_pair(mix_pair(hash_text(service.service.as_str()), hash_text(instance.as_str())), number)
}
