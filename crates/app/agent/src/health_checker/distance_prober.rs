use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use fairmesh_model::{DistanceRounds, Region, ServiceName};
use fairmesh_wire::{
    handshake::Connection,
    transport::{EndpointAddress, ExpectedPeer, Transport},
    v1::{self, ReportDistancesRequest, ReportedDistance},
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};
use tonic::{Code, Status};

use super::{Counts, distance_probe::KeptConnection};

/// Interval between rounds. Each round probes each target once.
const ROUND_INTERVAL: Duration = Duration::from_secs(3);
/// Number of sequential round trips in one probe.
const SAMPLES: usize = 3;
/// Maximum number of targets. The control plane names only a few for each region.
const MAX_TARGETS: usize = 768;
/// Maximum number of concurrent probes. More would delay each other.
const MAX_CONCURRENT: usize = 16;
/// Timeout of a report.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// An endpoint of another region to which distances are measured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DistanceTarget {
    region: Region,
    address: SocketAddr,
    http2: bool,
    /// Service identity that the endpoint proves by mutual TLS; `None` for plaintext.
    service: Option<ServiceName>,
}

impl DistanceTarget {
    /// Parses the targets in a message, and skips those that this version cannot parse.
    pub(super) fn of_all(messages: &[v1::DistanceTarget]) -> BTreeSet<Self> {
        let target = |message: &v1::DistanceTarget| {
            let region = Region::new(&message.region).ok()?;
            let service = match message.service.as_str() {
                "" => None,
                name => Some(ServiceName::new(name).ok()?),
            };
            Some(Self { region, address: message.address.parse().ok()?, http2: message.http2, service })
        };
        messages.iter().filter_map(target).take(MAX_TARGETS).collect()
    }
}

/// Measures distances to other regions during one term of leadership.
pub(super) struct DistanceProber {
    pub(super) region: Region,
    pub(super) term: u64,
    /// The local address to connect from, if given.
    pub(super) local_address: Option<IpAddr>,
    pub(super) connection: Connection,
    pub(super) counts: Arc<Counts>,
}

/// Connections by target.
type Connections = BTreeMap<DistanceTarget, Option<KeptConnection>>;

impl DistanceProber {
    /// Measures and reports until another agent is elected.
    pub(super) async fn run(self, targets: watch::Receiver<BTreeSet<DistanceTarget>>) {
        let mut connections = Connections::new();
        let mut rounds = BTreeMap::<Region, DistanceRounds>::new();
        let mut refusal = LastRefusal::default();
        let mut ticks = interval(ROUND_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let wanted = targets.borrow().clone();
            self.counts.distance_targets.store(wanted.len() as u64, Relaxed);
            connections.retain(|target, _| wanted.contains(target));
            for target in wanted {
                connections.entry(target).or_default();
            }
            rounds.retain(|region, _| connections.keys().any(|target| target.region == *region));
            let samples = self.probe_all(&mut connections).await;
            let distances = samples.into_iter().filter_map(|(region, samples)| {
                let median = rounds.entry(region.clone()).or_default().add(samples)?;
                let rtt_us = u64::try_from(median.as_micros()).unwrap_or(u64::MAX);
                Some(ReportedDistance { region: region.to_string(), rtt_us })
            });
            let distances: Vec<_> = distances.collect();
            if !distances.is_empty() && !self.report(distances, &mut refusal).await {
                return;
            }
        }
    }

    /// Probes every target once and returns the samples by region.
    async fn probe_all(&self, connections: &mut Connections) -> BTreeMap<Region, Vec<Duration>> {
        let mut waiting = std::mem::take(connections).into_iter();
        let mut probes = JoinSet::new();
        let mut samples = BTreeMap::<Region, Vec<Duration>>::new();
        loop {
            while probes.len() < MAX_CONCURRENT
                && let Some((target, kept)) = waiting.next()
            {
                self.counts.distance_probes.fetch_add(1, Relaxed);
                let transport = self.connection.transport().clone();
                probes.spawn(probe(transport, target, kept, self.local_address));
            }
            match probes.join_next().await {
                None => return samples,
                Some(Ok((target, kept, measured))) => {
                    if measured.is_empty() {
                        self.counts.distance_failures.fetch_add(1, Relaxed);
                    }
                    samples.entry(target.region.clone()).or_default().extend(measured);
                    connections.insert(target, kept);
                }
                // The panic was reported; the target is probed again with a new connection.
                Some(Err(_)) => {}
            }
        }
    }

    /// Reports distances. Returns false when the leadership is lost. A failed report is not repeated, since the next
    /// one replaces it.
    async fn report(&self, distances: Vec<ReportedDistance>, refusal: &mut LastRefusal) -> bool {
        let request = ReportDistancesRequest { region: self.region.to_string(), term: self.term, distances };
        let mut checker = self.connection.checker();
        match timeout(REPORT_TIMEOUT, checker.report_distances(request)).await {
            Ok(Err(status)) if status.code() == Code::FailedPrecondition => false,
            Ok(Err(status)) => {
                if refusal.is_new(&status) {
                    tracing::warn!(region = %self.region, %status, "control plane does not accept distances");
                }
                true
            }
            Ok(Ok(_)) => {
                if refusal.clear() {
                    tracing::info!(region = %self.region, "control plane accepts distances again");
                }
                true
            }
            Err(_) => true,
        }
    }
}

/// Why the control plane refused the last report; logged only when it changes.
#[derive(Debug, Default)]
struct LastRefusal(Option<(Code, String)>);

impl LastRefusal {
    /// Notes a refusal and returns whether it differs from the previous one.
    fn is_new(&mut self, status: &Status) -> bool {
        let refusal = Some((status.code(), status.message().to_owned()));
        std::mem::replace(&mut self.0, refusal.clone()) != refusal
    }

    /// Notes an accepted report and returns whether the previous one was refused.
    fn clear(&mut self) -> bool {
        self.0.take().is_some()
    }
}

/// Times a few round trips to a target, on its existing connection if any.
async fn probe(
    transport: Transport,
    target: DistanceTarget,
    kept: Option<KeptConnection>,
    from: Option<IpAddr>,
) -> (DistanceTarget, Option<KeptConnection>, Vec<Duration>) {
    let mut samples = Vec::with_capacity(SAMPLES);
    let mut connection = kept;
    let endpoint = EndpointAddress {
        address: target.address,
        peer: target.service.as_ref().map(ExpectedPeer::Service),
        // The control plane names only endpoints that accept these connections.
        accepts_plaintext: target.service.is_none(),
        from,
    };
    for _ in 0..SAMPLES {
        let mut open = match connection.take() {
            Some(open) => open,
            None => match KeptConnection::open(&transport, endpoint, target.http2).await {
                Ok(open) => open,
                Err(_) => break,
            },
        };
        if let Ok(sample) = open.round_trip().await {
            samples.push(sample);
            connection = Some(open);
        }
    }
    (target, connection, samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unparsable_distance_targets_are_skipped() {
        let target = |region: &str, address: &str| v1::DistanceTarget {
            region: region.into(),
            address: address.into(),
            http2: true,
            service: String::new(),
        };
        let of = DistanceTarget::of_all(&[
            target("us", "127.0.0.1:80"),
            target("US!", "127.0.0.1:80"),
            target("us", "cart.example:80"),
        ]);
        assert_eq!(of.iter().map(|target| target.address.to_string()).collect::<Vec<_>>(), ["127.0.0.1:80"]);
    }

    #[test]
    fn repeated_refusal_is_reported_once_until_success_clears_it() {
        let mut refusal = LastRefusal::default();
        assert!(!refusal.clear(), "nothing was refused");
        let unknown = Status::invalid_argument("region eu has no endpoints");
        let news =
            [&unknown, &unknown, &Status::unavailable("gone"), &unknown].map(|why| refusal.is_new(why));
        assert_eq!(news, [true, false, true, true]);
        assert!(refusal.clear() && !refusal.clear());
        assert!(refusal.is_new(&unknown), "again after it was accepted");
    }

    #[tokio::test]
    async fn unreachable_probe_target_has_no_distance_samples() {
        let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let target =
            DistanceTarget { region: Region::new("us").unwrap(), address: free, http2: false, service: None };
        let (_, kept, samples) = probe(Transport::default(), target, None, None).await;
        assert!(kept.is_none() && samples.is_empty());
    }
}
