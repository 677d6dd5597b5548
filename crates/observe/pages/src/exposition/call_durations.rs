//! Native histograms of call durations in the Prometheus data model, with exemplars.

use fairmesh_metrics::{DurationFamily, DurationSnapshot, Labels, SCHEMA, TraceExemplar};
use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::{
    Bucket, BucketSpan, Exemplar, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};
use prost_types::Timestamp;

/// Durations up to this many seconds count as zero (`2^-128`, the default of Prometheus client libraries).
const ZERO_THRESHOLD: f64 = 2.938_735_877_055_719e-39;

/// Converts a family of durations. Clients that support native histograms use the native buckets and their exemplars;
/// others use the classic ones.
pub(super) fn family(DurationFamily { name, help, rows }: DurationFamily) -> MetricFamily {
    let metric = rows.into_iter().map(|(labels, durations)| Metric {
        label: pairs(labels),
        histogram: Some(histogram(&durations)),
        ..Metric::default()
    });
    MetricFamily {
        name: name.to_owned(),
        help: help.to_owned(),
        r#type: MetricType::Histogram.into(),
        metric: metric.collect(),
        unit: "seconds".to_owned(),
    }
}

fn pairs(labels: Labels) -> Vec<LabelPair> {
    let pair = |(name, value): (&str, std::borrow::Cow<'_, str>)| LabelPair {
        name: name.to_owned(),
        value: value.into_owned(),
    };
    labels.into_iter().map(pair).collect()
}

fn histogram(durations: &DurationSnapshot) -> Histogram {
    let (spans, deltas) = durations.spans();
    Histogram {
        sample_count: durations.count(),
        sample_sum: durations.seconds(),
        bucket: classic(durations),
        schema: SCHEMA,
        zero_threshold: ZERO_THRESHOLD,
        positive_span: spans.into_iter().map(|(offset, length)| BucketSpan { offset, length }).collect(),
        positive_delta: deltas,
        exemplars: durations.exemplars().iter().map(exemplar).collect(),
        ..Histogram::default()
    }
}

fn classic(durations: &DurationSnapshot) -> Vec<Bucket> {
    let (mut cumulative_count, mut lower) = (0, 0.0);
    let bucket = |(upper_bound, count): (f64, u64)| {
        cumulative_count += count;
        let within = |(seconds, _): &&(f64, TraceExemplar)| lower < *seconds && *seconds <= upper_bound;
        let exemplar = durations.exemplars().iter().rfind(within).map(exemplar);
        lower = upper_bound;
        Bucket { cumulative_count, upper_bound, exemplar, ..Bucket::default() }
    };
    durations.classic().into_iter().map(bucket).collect()
}

/// Converts an exemplar. Its labels are named as in OpenMetrics and OpenTelemetry.
fn exemplar((seconds, TraceExemplar { trace, span, at }): &(f64, TraceExemplar)) -> Exemplar {
    let label = |name: &str, value| LabelPair { name: name.to_owned(), value };
    Exemplar {
        label: vec![label("trace_id", format!("{trace:032x}")), label("span_id", format!("{span:016x}"))],
        value: *seconds,
        timestamp: Some(Timestamp {
            seconds: i64::try_from(at.as_secs()).unwrap_or(i64::MAX),
            // Less than a billion, so the cast is exact.
            nanos: at.subsec_nanos().cast_signed(),
        }),
    }
}
