//! Converts metric families of the Prometheus data model to OTLP metrics.

use fairmesh_metrics::ATTRIBUTES;
use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model as prometheus;
use prost::Message as _;

use crate::{
    AttributeValue,
    metrics::v1::{
        self, AggregationTemporality, exemplar, exponential_histogram_data_point::Buckets, metric::Data,
        number_data_point,
    },
    span::attributes,
    v1::KeyValue,
};

/// Timestamps, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// When the counters started at zero.
    pub(crate) start: u64,
    pub(crate) now: u64,
}

const CUMULATIVE: i32 = AggregationTemporality::Cumulative as i32;

/// Converts a family to an OTLP metric. Metrics and labels with a name in OpenTelemetry's semantic conventions get
/// that name.
pub(crate) fn metric(family: &prometheus::MetricFamily, times: Times) -> v1::Metric {
    let is_conventional = family.name.starts_with("http_") || family.name.starts_with("rpc_");
    let name = match is_conventional {
        true => family.name.trim_end_matches("_seconds").replace('_', "."),
        false => family.name.strip_suffix("_total").unwrap_or(&family.name).to_owned(),
    };
    // Units are UCUM codes.
    let unit = match &*family.unit {
        "seconds" => "s",
        "bytes" => "By",
        _ => "",
    };
    v1::Metric {
        name,
        description: family.help.clone(),
        unit: unit.to_owned(),
        data: Some(data(family, times)),
    }
}

/// Splits a metric into metrics of at most `max_bytes` each. A metric with a single data point is not split.
pub(crate) fn split(mut metric: v1::Metric, max_bytes: usize) -> Vec<v1::Metric> {
    let is_long = metric.encoded_len() > max_bytes;
    let Some(rest) = metric.data.as_mut().filter(|_| is_long).and_then(take_half) else {
        return vec![metric];
    };
    let v1::Metric { name, description, unit, .. } = &metric;
    let (name, description, unit) = (name.clone(), description.clone(), unit.clone());
    let rest = v1::Metric { name, description, unit, data: Some(rest) };
    [split(metric, max_bytes), split(rest, max_bytes)].concat()
}

/// Takes out the second half of the data points; `None` if there is only one data point.
fn take_half(data: &mut Data) -> Option<Data> {
    fn half<T>(points: &mut Vec<T>) -> Option<Vec<T>> {
        (points.len() > 1).then(|| points.split_off(points.len() / 2))
    }
    Some(match data {
        Data::Gauge(gauge) => Data::Gauge(v1::Gauge { data_points: half(&mut gauge.data_points)? }),
        Data::Sum(sum) => Data::Sum(v1::Sum { data_points: half(&mut sum.data_points)?, ..*sum }),
        Data::Histogram(histogram) => {
            Data::Histogram(v1::Histogram { data_points: half(&mut histogram.data_points)?, ..*histogram })
        }
        Data::ExponentialHistogram(histogram) => Data::ExponentialHistogram(v1::ExponentialHistogram {
            data_points: half(&mut histogram.data_points)?,
            ..*histogram
        }),
    })
}

fn data(family: &prometheus::MetricFamily, times: Times) -> Data {
    let series = family.metric.iter();
    let is_native = |metric: &prometheus::Metric| {
        metric.histogram.as_ref().is_some_and(|histogram| !histogram.positive_span.is_empty())
    };
    match family.r#type() {
        prometheus::MetricType::Counter => Data::Sum(v1::Sum {
            data_points: series.map(|metric| number(metric, times)).collect(),
            aggregation_temporality: CUMULATIVE,
            is_monotonic: true,
        }),
        prometheus::MetricType::Histogram if family.metric.iter().any(is_native) => {
            Data::ExponentialHistogram(v1::ExponentialHistogram {
                data_points: series.map(|metric| exponential(metric, times)).collect(),
                aggregation_temporality: CUMULATIVE,
            })
        }
        prometheus::MetricType::Histogram => Data::Histogram(v1::Histogram {
            data_points: series.map(|metric| explicit(metric, times)).collect(),
            aggregation_temporality: CUMULATIVE,
        }),
        _ => Data::Gauge(v1::Gauge { data_points: series.map(|metric| number(metric, times)).collect() }),
    }
}

fn labels(metric: &prometheus::Metric) -> Vec<KeyValue> {
    let pair = |label: &prometheus::LabelPair| {
        let name = ATTRIBUTES.iter().find(|(known, _)| *known == label.name);
        let name = name.map_or(&*label.name, |(_, attribute)| attribute);
        let value = match label.value.parse() {
            Ok(code) if name == "http.response.status_code" => AttributeValue::Number(code),
            _ => AttributeValue::from(&*label.value),
        };
        (name.to_owned(), value)
    };
    attributes(metric.label.iter().map(pair).collect())
}

fn number(metric: &prometheus::Metric, times: Times) -> v1::NumberDataPoint {
    let counter = metric.counter.as_ref().map(|counter| counter.value);
    let value = counter.or(metric.gauge.as_ref().map(|gauge| gauge.value));
    v1::NumberDataPoint {
        // A gauge has no start time.
        start_time_unix_nano: counter.map_or(0, |_| times.start),
        time_unix_nano: times.now,
        value: value.map(number_data_point::Value::AsDouble),
        attributes: labels(metric),
    }
}

fn explicit(metric: &prometheus::Metric, times: Times) -> v1::HistogramDataPoint {
    let histogram = metric.histogram.clone().unwrap_or_default();
    let mut before = 0;
    let counts = histogram
        .bucket
        .iter()
        .map(|bucket| bucket.cumulative_count - std::mem::replace(&mut before, bucket.cumulative_count));
    let bucket_counts = counts.collect();
    let bounds = histogram.bucket.iter().map(|bucket| bucket.upper_bound);
    v1::HistogramDataPoint {
        start_time_unix_nano: times.start,
        time_unix_nano: times.now,
        count: histogram.sample_count,
        sum: Some(histogram.sample_sum),
        bucket_counts,
        explicit_bounds: bounds.filter(|bound| bound.is_finite()).collect(),
        exemplars: Vec::new(),
        attributes: labels(metric),
    }
}

fn exponential(metric: &prometheus::Metric, times: Times) -> v1::ExponentialHistogramDataPoint {
    let histogram = metric.histogram.clone().unwrap_or_default();
    v1::ExponentialHistogramDataPoint {
        attributes: labels(metric),
        start_time_unix_nano: times.start,
        time_unix_nano: times.now,
        count: histogram.sample_count,
        sum: Some(histogram.sample_sum),
        scale: histogram.schema,
        zero_count: histogram.zero_count,
        positive: Some(buckets(&histogram)),
        negative: None,
        exemplars: histogram.exemplars.iter().map(exemplar).collect(),
        zero_threshold: histogram.zero_threshold,
    }
}

/// Returns all buckets from the first to the last non-empty one. Prometheus numbers a bucket by its upper bound,
/// OpenTelemetry by its lower bound.
fn buckets(histogram: &prometheus::Histogram) -> Buckets {
    let mut deltas = histogram.positive_delta.iter();
    let (mut bucket_counts, mut count) = (Vec::new(), 0_i64);
    for (i, span) in histogram.positive_span.iter().enumerate() {
        if i > 0 {
            bucket_counts.resize(bucket_counts.len() + usize::try_from(span.offset).unwrap_or(0), 0);
        }
        for delta in deltas.by_ref().take(span.length as usize) {
            count += delta;
            bucket_counts.push(u64::try_from(count).unwrap_or(0));
        }
    }
    Buckets { offset: histogram.positive_span.first().map_or(0, |span| span.offset - 1), bucket_counts }
}

fn exemplar(exemplar: &prometheus::Exemplar) -> v1::Exemplar {
    let bytes = |name: &str| {
        let label = exemplar.label.iter().find(|label| label.name == name);
        let digits = label.map_or("", |label| &label.value).as_bytes();
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        digits.chunks(2).filter_map(pair).collect::<Vec<_>>()
    };
    let at = exemplar.timestamp.unwrap_or_default();
    let nanos = i128::from(at.seconds) * 1_000_000_000 + i128::from(at.nanos);
    v1::Exemplar {
        time_unix_nano: u64::try_from(nanos).unwrap_or(0),
        value: Some(exemplar::Value::AsDouble(exemplar.value)),
        span_id: bytes("span_id"),
        trace_id: bytes("trace_id"),
    }
}
