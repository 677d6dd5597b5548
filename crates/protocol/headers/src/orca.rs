use std::{collections::BTreeMap, fmt::Write as _};

use bytes::Bytes;
use prost::Message as _;

use super::OUTSTANDING;

/// A load report as protobuf (ORCA, `xds.data.orca.v3.OrcaLoadReport`), as Envoy and gRPC read it. 0 means not
/// reported. Used only in tests, which compare the codecs of the request path with it.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct OrcaReport {
    /// Share of the CPU limit in use, 0 to 1; above 1 while a server bursts.
    #[prost(double, tag = "1")]
    pub cpu_utilization: f64,
    /// Share of the memory limit in use, 0 to 1.
    #[prost(double, tag = "2")]
    pub mem_utilization: f64,
    /// Cost of this request, under names that the server chooses.
    #[prost(btree_map = "string, double", tag = "4")]
    pub request_cost: BTreeMap<String, f64>,
    /// Utilization of other resources, 0 to 1.
    #[prost(btree_map = "string, double", tag = "5")]
    pub utilization: BTreeMap<String, f64>,
    /// Requests per second.
    #[prost(double, tag = "6")]
    pub rps_fractional: f64,
    /// Failed requests per second.
    #[prost(double, tag = "7")]
    pub eps: f64,
    /// Metrics by name, including [`OUTSTANDING`].
    #[prost(btree_map = "string, double", tag = "8")]
    pub named_metrics: BTreeMap<String, f64>,
    /// The server's own measure of its utilization, 0 to 1.
    #[prost(double, tag = "9")]
    pub application_utilization: f64,
}

impl OrcaReport {
    /// Creates a report of requests in flight.
    pub(crate) fn of_outstanding(outstanding: u32) -> Self {
        let named_metrics = BTreeMap::from([(OUTSTANDING.to_owned(), outstanding.into())]);
        Self { named_metrics, ..Self::default() }
    }

    /// Requests in flight when the server wrote the report, excluding the one that carries it; `None` if not reported.
    pub(crate) fn outstanding(&self) -> Option<u32> {
        let value = *self.named_metrics.get(OUTSTANDING)?;
        (0.0..=f64::from(u32::MAX)).contains(&value).then_some(value as u32)
    }

    /// Encodes the text form, for the header `endpoint-load-metrics`.
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::from("TEXT ");
        let mut put = |name: &str, key: &str, value: f64| {
            let comma = if text.len() > "TEXT ".len() { "," } else { "" };
            // Writing to a String cannot fail.
            let _ = write!(text, "{comma}{name}{key}={value}");
        };
        let plain = [
            ("cpu_utilization", self.cpu_utilization),
            ("mem_utilization", self.mem_utilization),
            ("application_utilization", self.application_utilization),
            ("rps_fractional", self.rps_fractional),
            ("eps", self.eps),
        ];
        plain.into_iter().filter(|(_, value)| *value != 0.0).for_each(|(name, value)| put(name, "", value));
        self.utilization.iter().for_each(|(key, value)| put("utilization.", key, *value));
        self.request_cost.iter().for_each(|(key, value)| put("request_cost.", key, *value));
        self.named_metrics.iter().for_each(|(key, value)| put("named_metrics.", key, *value));
        text
    }

    /// Parses the text form, with or without the leading `TEXT`. Unknown names are skipped. Returns `None` for another
    /// form (`JSON`, `BIN`), or if nothing could be parsed.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let pairs = text.strip_prefix("TEXT ").unwrap_or(text);
        let mut report = Self::default();
        let mut any = false;
        for (name, value) in pairs.split(',').filter_map(|pair| pair.split_once('=')) {
            let Some(value) = value.trim().parse().ok().filter(|value: &f64| value.is_finite()) else {
                continue;
            };
            any |= report.set(name.trim(), value);
        }
        any.then_some(report)
    }

    /// Encodes the protobuf form of the trailer `endpoint-load-metrics-bin`, before base64.
    pub(crate) fn to_binary(&self) -> Bytes {
        self.encode_to_vec().into()
    }

    /// Parses the protobuf form. Returns `None` if it is malformed.
    pub(crate) fn from_binary(bytes: &[u8]) -> Option<Self> {
        Self::decode(bytes).ok()
    }

    fn set(&mut self, name: &str, value: f64) -> bool {
        match name {
            "cpu_utilization" | "cpu" => self.cpu_utilization = value,
            "mem_utilization" | "mem" => self.mem_utilization = value,
            "application_utilization" => self.application_utilization = value,
            "rps_fractional" => self.rps_fractional = value,
            "eps" => self.eps = value,
            _ => {
                let Some((map, key)) = name.split_once('.') else {
                    return false;
                };
                let map = match map {
                    "utilization" => &mut self.utilization,
                    "request_cost" => &mut self.request_cost,
                    "named_metrics" => &mut self.named_metrics,
                    _ => return false,
                };
                map.insert(key.to_owned(), value);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orca_reports_round_trip_in_both_formats() {
        let report = OrcaReport {
            cpu_utilization: 0.3,
            request_cost: BTreeMap::from([("rows".to_owned(), 12.0)]),
            ..OrcaReport::of_outstanding(4)
        };
        assert_eq!(
            report.to_text(),
            "TEXT cpu_utilization=0.3,request_cost.rows=12,named_metrics.concurrent_requests=4"
        );
        assert_eq!(OrcaReport::from_text(&report.to_text()), Some(report.clone()));
        assert_eq!(OrcaReport::from_binary(&report.to_binary()), Some(report));
    }

    #[test]
    fn orca_reports_of_other_tools_parse_and_malformed_ones_are_rejected() {
        let report =
            OrcaReport::from_text("cpu=0.5, named_metrics.concurrent_requests=7, new_thing=1").unwrap();
        assert_eq!((report.cpu_utilization, report.outstanding()), (0.5, Some(7)));
        assert_eq!(
            OrcaReport::from_text("named_metrics.concurrent_requests=-1").unwrap().outstanding(),
            None
        );
        for wrong in ["", "JSON {}", "cpu_utilization=NaN", "cpu_utilization"] {
            assert_eq!(OrcaReport::from_text(wrong), None, "{wrong}");
        }
    }
}
