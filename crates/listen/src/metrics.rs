use std::sync::{Arc, atomic::Ordering::Relaxed};

use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::{MetricType, gauge::ConstGauge},
    registry::Registry,
};

use crate::{Acceptor, Listeners, acceptor::Shared, connection::CloseReason};

impl Listeners {
    /// Adds what is counted of the listeners to the metrics of a process.
    pub fn register(&self, registry: &mut Registry) {
        let (acceptors, memory) = self.all();
        let acceptors: Arc<[Acceptor]> = acceptors.into();
        for kind in Kind::ALL {
            let (name, help) = kind.words();
            registry.register(name, help, Family { kind, acceptors: Arc::clone(&acceptors) });
        }
        let gauges = [
            ("incomplete_requests_bytes", "Memory of incomplete and of large requests", memory.used()),
            ("incomplete_requests_limit_bytes", "The most that they may take", memory.total()),
            ("untaken_responses_bytes", "Responses that were not taken yet", memory.untaken().load(Relaxed)),
        ];
        for (name, help, bytes) in gauges {
            registry.register(name, help, ConstGauge::new(bytes as u64));
        }
    }
}

/// One series for each listener.
#[derive(Debug)]
struct Family {
    kind: Kind,
    acceptors: Arc<[Acceptor]>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Open,
    Limit,
    Accepted,
    Closed,
    Delayed,
    Refused,
}

impl Kind {
    const ALL: [Self; 6] =
        [Self::Open, Self::Limit, Self::Accepted, Self::Closed, Self::Delayed, Self::Refused];

    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Open => ("listener_connections", "Connections that are open"),
            Self::Limit => ("listener_connections_limit", "The most connections at one time"),
            Self::Accepted => ("listener_connections_accepted", "Connections accepted"),
            Self::Closed => ("listener_connections_closed", "Connections closed at a limit, by which"),
            Self::Delayed => (
                "listener_accepts_delayed",
                "Waits for a place or a descriptor before a connection was accepted",
            ),
            Self::Refused => {
                ("listener_requests_refused", "Requests ended before they were complete, by why")
            }
        }
    }

    const fn is_gauge(self) -> bool {
        matches!(self, Self::Open | Self::Limit)
    }

    /// Values by a second label, if there is one.
    fn values(self, shared: &Shared) -> Vec<(Option<&'static str>, u64)> {
        let counts = &shared.counts;
        match self {
            Self::Open => vec![(None, shared.open() as u64)],
            Self::Limit => vec![(None, shared.full() as u64)],
            Self::Accepted => vec![(None, counts.accepted.load(Relaxed))],
            Self::Delayed => vec![(None, counts.delayed.load(Relaxed))],
            Self::Closed => {
                let closed = CloseReason::ALL.iter().zip(&counts.closed);
                closed.map(|(reason, count)| (Some(reason.label()), count.load(Relaxed))).collect()
            }
            Self::Refused => vec![
                (Some("body_timeout"), counts.late_bodies.load(Relaxed)),
                (Some("memory"), counts.large_bodies.load(Relaxed)),
                (Some("wait"), counts.refused_waits.load(Relaxed)),
            ],
        }
    }
}

impl EncodeMetric for Family {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> std::fmt::Result {
        for acceptor in &*self.acceptors {
            let shared = acceptor.shared();
            for (reason, value) in self.kind.values(shared) {
                let mut labels = vec![("listener", shared.name)];
                labels.extend(reason.map(|reason| ("reason", reason)));
                let mut series = encoder.encode_family(&labels)?;
                if self.kind.is_gauge() {
                    series.encode_gauge(&value)?;
                } else {
                    series.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
                }
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        if self.kind.is_gauge() { MetricType::Gauge } else { MetricType::Counter }
    }
}
