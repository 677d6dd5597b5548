use std::sync::{Arc, atomic::Ordering::Relaxed};

use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::{MetricType, gauge::ConstGauge},
    registry::Registry,
};

use crate::{Acceptor, Listeners, acceptor::AcceptorState, connection::CloseReason};

impl Listeners {
    /// Registers the metrics of the listeners.
    pub fn register(&self, registry: &mut Registry) {
        let (acceptors, memory) = self.all();
        let acceptors: Arc<[Acceptor]> = acceptors.into();
        for kind in Kind::ALL {
            let (name, help) = kind.name_and_help();
            registry.register(name, help, Family { kind, acceptors: Arc::clone(&acceptors) });
        }
        let gauges = [
            ("incomplete_requests_bytes", "Memory of incomplete and large requests", memory.used()),
            (
                "incomplete_requests_limit_bytes",
                "Maximum of the memory of incomplete and large requests",
                memory.total(),
            ),
            (
                "unread_responses_bytes",
                "Memory of responses that peers have not read",
                memory.unread().load(Relaxed),
            ),
        ];
        for (name, help, bytes) in gauges {
            registry.register(name, help, ConstGauge::new(bytes as u64));
        }
    }
}

/// A metric with one series per listener.
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

    const fn name_and_help(self) -> (&'static str, &'static str) {
        match self {
            Self::Open => ("listener_connections", "Open connections"),
            Self::Limit => ("listener_connections_limit", "Maximum of open connections"),
            Self::Accepted => ("listener_connections_accepted", "Accepted connections"),
            Self::Closed => ("listener_connections_closed", "Connections closed by a limit, by reason"),
            Self::Delayed => (
                "listener_accepts_delayed",
                "Accepts delayed by the maximum of connections or of descriptors",
            ),
            Self::Refused => {
                ("listener_requests_refused", "Requests refused before they were complete, by reason")
            }
        }
    }

    const fn is_gauge(self) -> bool {
        matches!(self, Self::Open | Self::Limit)
    }

    /// Returns the values, one per value of the second label if the metric has one.
    fn values(self, shared: &AcceptorState) -> Vec<(Option<&'static str>, u64)> {
        let counts = &shared.counts;
        match self {
            Self::Open => vec![(None, shared.open() as u64)],
            Self::Limit => vec![(None, shared.max_open() as u64)],
            Self::Accepted => vec![(None, counts.accepted.load(Relaxed))],
            Self::Delayed => vec![(None, counts.delayed.load(Relaxed))],
            Self::Closed => {
                let closed = CloseReason::ALL.iter().zip(&counts.closed);
                closed.map(|(reason, count)| (Some(reason.label()), count.load(Relaxed))).collect()
            }
            Self::Refused => vec![
                (Some("body_timeout"), counts.body_timeouts.load(Relaxed)),
                (Some("memory"), counts.memory_refusals.load(Relaxed)),
                (Some("wait"), counts.wait_refusals.load(Relaxed)),
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
