//! Metric series of the requests to the program behind a proxy.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::MetricType,
    registry::{Registry, Unit},
};

use crate::observe::served_metrics::{CallerSeries, ServedMetrics};

const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// What a metric family counts.
#[derive(Clone, Copy, Debug)]
enum Counted {
    Responses,
    GrpcResponses,
    RequestBytes,
    ResponseBytes,
    Durations,
}

/// A metric family with the series of all callers of some services.
#[derive(Debug)]
struct CallerFamily {
    services: Vec<Arc<ServedMetrics>>,
    counted: Counted,
}

impl ServedMetrics {
    /// Registers the series of all callers.
    pub fn register(self: &Arc<Self>, registry: &mut Registry) {
        let family = |counted| CallerFamily { services: vec![Arc::clone(self)], counted };
        let families = [
            (
                "grpc_responses",
                "gRPC calls of the program by caller and status; (none) for those without one",
                Counted::GrpcResponses,
            ),
            ("request_bytes", "Bytes of request bodies by caller", Counted::RequestBytes),
            ("response_bytes", "Bytes of response bodies by caller", Counted::ResponseBytes),
        ];
        for (name, help, counted) in families {
            registry.register(name, help, family(counted));
        }
        Self::register_responses(std::slice::from_ref(self), registry);
    }

    /// Registers the responses of several programs, and their durations.
    pub fn register_responses(services: &[Arc<Self>], registry: &mut Registry) {
        let family = |counted| CallerFamily { services: services.to_vec(), counted };
        let help = "Responses of the program by caller and status class";
        registry.register("responses", help, family(Counted::Responses));
        let help = "Time to the response headers of the program by caller";
        let durations = family(Counted::Durations);
        registry.register_with_unit("response_headers_duration", help, Unit::Seconds, durations);
    }
}

impl CallerFamily {
    fn encode_series(
        &self,
        encoder: &mut MetricEncoder<'_>,
        labels: [(&str, &str); 2],
        series: &CallerSeries,
    ) -> fmt::Result {
        let mut count = |label: Option<(&str, &str)>, count: u64| {
            let labels: Vec<_> = labels.into_iter().chain(label).collect();
            let mut encoder = encoder.encode_family(&labels)?;
            encoder.encode_counter::<NoLabelSet, _, u64>(&count, None)
        };
        match self.counted {
            Counted::Responses => CLASSES
                .into_iter()
                .zip(series.responses.classes())
                .try_for_each(|(class, responses)| count(Some(("class", class)), responses)),
            Counted::GrpcResponses => series
                .grpc_statuses
                .iter()
                .try_for_each(|(code, responses)| count(Some(("code", code)), responses)),
            Counted::RequestBytes => count(None, series.received.load(Relaxed)),
            Counted::ResponseBytes => count(None, series.sent.load(Relaxed)),
            Counted::Durations => {
                let (buckets, sum) = series.responses.durations();
                let count = buckets.iter().map(|(_, count)| count).sum();
                let mut encoder = encoder.encode_family(&labels)?;
                encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
            }
        }
    }
}

impl EncodeMetric for CallerFamily {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        self.services.iter().try_for_each(|metrics| {
            metrics.series().iter().try_for_each(|(caller, series)| {
                self.encode_series(&mut encoder, [("service", &metrics.service), ("caller", caller)], series)
            })
        })
    }

    fn metric_type(&self) -> MetricType {
        match self.counted {
            Counted::Durations => MetricType::Histogram,
            _ => MetricType::Counter,
        }
    }
}
