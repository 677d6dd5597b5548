//! Probes of pods: one probe an interval for each address where pods listen, however many services, gateway replicas and
//! cores use the pod (aggregated health checks; Canal Mesh, section 6.1).

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use tokio::{
    net::TcpStream,
    sync::watch,
    time::{sleep, timeout},
};

/// Intervals of probes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Intervals {
    /// Until the pod has first accepted a connection.
    pub(crate) first: Duration,
    /// Afterwards.
    pub(crate) usual: Duration,
}

/// The intervals of a node.
pub(crate) const INTERVALS: Intervals =
    Intervals { first: Duration::from_millis(100), usual: Duration::from_secs(2) };
/// Time limit of a probe. It is short, since the pod is on this machine.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of consecutive failed probes after which callers avoid a pod. A single failure may be an accident.
const LOST_AFTER: u32 = 2;

/// What the probes of a pod found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reachability {
    /// The pod has not accepted a connection yet.
    #[default]
    Unknown,
    /// The pod accepts connections.
    Reached,
    /// The pod has accepted connections before, and accepts none now.
    Lost,
}

/// The probes of all pods of a node. Each goes on until all of its receivers are gone.
#[derive(Debug)]
pub(crate) struct PodProbes {
    intervals: Intervals,
    by_pod: BTreeMap<SocketAddr, watch::Receiver<Reachability>>,
}

impl PodProbes {
    pub(crate) fn new(intervals: Intervals) -> Self {
        Self { intervals, by_pod: BTreeMap::new() }
    }

    /// Follows the probes of a pod. The first call for an address starts them, on the current runtime.
    pub(crate) fn follow(&mut self, pod: SocketAddr) -> watch::Receiver<Reachability> {
        let intervals = self.intervals;
        let start = || {
            let (sender, receiver) = watch::channel(Reachability::default());
            tokio::spawn(probe(pod, intervals, sender));
            receiver
        };
        self.by_pod.entry(pod).or_insert_with(start).clone()
    }
}

async fn probe(pod: SocketAddr, intervals: Intervals, sender: watch::Sender<Reachability>) {
    let mut failures = 0;
    let probing = async {
        loop {
            failures = if accepts(pod).await { 0 } else { failures + 1 };
            sender.send_if_modified(|reachability| after(reachability, failures));
            let is_unknown = *sender.borrow() == Reachability::Unknown;
            sleep(if is_unknown { intervals.first } else { intervals.usual }).await;
        }
    };
    tokio::select! {
        () = probing => {}
        () = sender.closed() => {}
    }
}

/// Applies the result of a probe, after which `failures` probes in succession have failed. Returns whether the
/// reachability has changed.
fn after(reachability: &mut Reachability, failures: u32) -> bool {
    let next = match (*reachability, failures) {
        (_, 0) => Reachability::Reached,
        (Reachability::Reached, LOST_AFTER..) => Reachability::Lost,
        (unchanged, _) => unchanged,
    };
    std::mem::replace(reachability, next) != next
}

async fn accepts(pod: SocketAddr) -> bool {
    matches!(timeout(PROBE_TIMEOUT, TcpStream::connect(pod)).await, Ok(Ok(_)))
}

#[cfg(test)]
mod tests {
    use fairmesh_test_support::PATIENCE;
    use tokio::{
        net::TcpListener,
        time::{Instant, interval},
    };

    use super::*;

    const FAST: Intervals =
        Intervals { first: Duration::from_millis(100), usual: Duration::from_millis(100) };

    #[test]
    fn pod_is_lost_after_two_failures_and_reached_by_one_success() {
        let mut reachability = Reachability::Unknown;
        let seen: Vec<_> = [1, 2, 0, 1, 2, 3, 0]
            .into_iter()
            .map(|failures| (after(&mut reachability, failures), reachability))
            .collect();
        use Reachability::{Lost, Reached, Unknown};
        let expected = [Unknown, Unknown, Reached, Reached, Lost, Lost, Reached];
        assert_eq!(seen.iter().map(|(_, now)| *now).collect::<Vec<_>>(), expected);
        let changes = [false, false, true, false, true, false, true];
        assert_eq!(seen.iter().map(|(changed, _)| *changed).collect::<Vec<_>>(), changes);
    }

    #[tokio::test]
    async fn pod_of_two_services_is_probed_once_an_interval() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut probes = PodProbes::new(FAST);
        let pod = listener.local_addr().unwrap();
        let mut followers = [probes.follow(pod), probes.follow(pod)];
        let began = Instant::now();
        for _ in 0..5 {
            listener.accept().await.unwrap();
        }
        // Five probes of one prober take four intervals; those of two would take two.
        assert!(began.elapsed() >= 3 * FAST.usual, "{:?}", began.elapsed());
        for follower in &mut followers {
            follower.wait_for(|now| *now == Reachability::Reached).await.unwrap();
        }
    }

    #[tokio::test]
    async fn probes_end_with_their_last_follower() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut probes = PodProbes::new(FAST);
        let follower = probes.follow(listener.local_addr().unwrap());
        listener.accept().await.unwrap();
        drop((probes, follower));
        let quiet = async {
            let (mut ticks, mut quiet) = (interval(FAST.usual), 0);
            while quiet < 5 {
                tokio::select! {
                    // At most one probe was under way.
                    _ = listener.accept() => quiet = 0,
                    _ = ticks.tick() => quiet += 1,
                }
            }
        };
        assert!(timeout(PATIENCE, quiet).await.is_ok(), "probes go on");
    }
}
