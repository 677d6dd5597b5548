//! What is counted by service, region, status or endpoint, as series.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::{Registry, Unit},
};

use crate::{
    endpoints::EndpointMetrics,
    insight::Seeing,
    metrics::Golden,
    service::{Services, Target},
};

/// The region of a caller that knows nothing yet.
const UNKNOWN: &str = "(unknown)";
/// What services without series of their own are called together, those included that were let go; no name of a service.
const OTHERS: &str = "(other)";

/// Registers all of them.
pub(crate) fn register(registry: &mut Registry, services: &Arc<Services>, seeing: &Seeing) {
    registry.register("services", "Services subscribed to", ConstGauge::new(services.len() as u64));
    let idle = ConstCounter::new(services.idle.load(Relaxed));
    registry.register("idle_services_evicted", "Services evicted because they were not called", idle);
    let help = "Requests refused because of the maximum of services";
    registry.register("services_refused", help, ConstCounter::new(services.refused.load(Relaxed)));
    let of = |kind| Family { kind, services: Arc::clone(services) };
    registry.register("responses", "Responses by service, status class and regions", of(Kind::Answers));
    registry.register(
        "grpc_responses",
        "Responses to gRPC calls by service and status code",
        of(Kind::Codes),
    );
    registry.register("faults", "Requests without a response of a server", of(Kind::Faults));
    let times = of(Kind::Times);
    registry.register_with_unit(
        "response_headers_duration",
        "Time to the response headers",
        Unit::Seconds,
        times,
    );
    if let Some(endpoints) = &seeing.endpoints {
        let of = |is_time| Tries { is_time, endpoints: Arc::clone(endpoints) };
        registry.register("endpoint_attempts", "Attempts by endpoint and outcome", of(false));
        let help = "Duration of attempts by endpoint";
        registry.register_with_unit("endpoint_attempt_duration", help, Unit::Seconds, of(true));
    }
    if let Some(counts) = seeing.spans() {
        for (name, help, count) in [
            ("spans_exported", "Spans accepted by the collector", counts.exported),
            ("spans_dropped", "Spans dropped because the queue was full", counts.dropped),
            ("spans_rejected", "Spans rejected by the collector, or not delivered", counts.refused),
        ] {
            registry.register(name, help, ConstCounter::new(count));
        }
    }
}

/// Series of services.
#[derive(Debug)]
struct Family {
    kind: Kind,
    services: Arc<Services>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Answers,
    Codes,
    Faults,
    Times,
}

/// Counters of endpoints.
#[derive(Debug)]
struct Tries {
    is_time: bool,
    endpoints: Arc<EndpointMetrics>,
}

impl EncodeMetric for Family {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let (labelled, others) = self.services.labelled();
        for (name, target) in labelled {
            let of = (&*name.to_string(), &*home(&target));
            self.series(&mut encoder, of, &target.golden)?;
        }
        others.map_or(Ok(()), |golden| self.series(&mut encoder, (OTHERS, UNKNOWN), &golden))
    }

    fn metric_type(&self) -> MetricType {
        match self.kind {
            Kind::Times => MetricType::Histogram,
            _ => MetricType::Counter,
        }
    }
}

impl Family {
    /// The series of one service, called from a region.
    fn series(
        &self,
        encoder: &mut MetricEncoder<'_>,
        (name, from): (&str, &str),
        golden: &Golden,
    ) -> fmt::Result {
        match self.kind {
            Kind::Faults => count(encoder, &[("service", name)], golden.faults.load(Relaxed)),
            Kind::Codes => {
                let mut codes = golden.codes.each();
                codes.try_for_each(|(code, answers)| {
                    count(encoder, &[("service", name), ("code", code)], answers)
                })
            }
            Kind::Answers => answers(encoder, (name, from), golden),
            Kind::Times => times(encoder, (name, from), golden),
        }
    }
}

fn answers(encoder: &mut MetricEncoder<'_>, (name, from): (&str, &str), golden: &Golden) -> fmt::Result {
    for (to, signals) in golden.answers.each() {
        for (class, answers) in ["1xx", "2xx", "3xx", "4xx", "5xx"].into_iter().zip(signals.classes()) {
            let labels = [("service", name), ("class", class), ("from_region", from), ("to_region", to)];
            count(encoder, &labels, answers)?;
        }
    }
    Ok(())
}

fn times(encoder: &mut MetricEncoder<'_>, (name, from): (&str, &str), golden: &Golden) -> fmt::Result {
    for (to, signals) in golden.answers.each() {
        let (buckets, sum) = signals.times();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let labels = [("service", name), ("from_region", from), ("to_region", to)];
        encoder.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
    }
    Ok(())
}

fn home(target: &Target) -> String {
    target.known().map_or_else(|| UNKNOWN.to_owned(), |(home, _)| home.to_string())
}

fn count<const N: usize>(
    encoder: &mut MetricEncoder<'_>,
    labels: &[(&str, &str); N],
    count: u64,
) -> fmt::Result {
    encoder.encode_family(labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)
}

impl EncodeMetric for Tries {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for row in self.endpoints.rows() {
            // Not `instance`, which is what Prometheus calls the proxy that it asked.
            let labels = [("service", &*row.service), ("endpoint", &*row.instance), ("region", &*row.region)];
            if self.is_time {
                let mut encoder = encoder.encode_family(&labels)?;
                encoder.encode_counter::<NoLabelSet, _, u64>(&row.seconds, None)?;
                continue;
            }
            for (outcome, tries) in row.outcomes {
                let [service, endpoint, region] = labels;
                count(&mut encoder, &[service, endpoint, region, ("outcome", outcome)], tries)?;
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}
