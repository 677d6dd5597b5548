//! Reports in the messages of the previous release (`Imbalance.Report`). To be removed together with its support.

use crate::v1;

impl From<v1::TrafficReport> for v1::ReportSignalsRequest {
    fn from(traffic: v1::TrafficReport) -> Self {
        let v1::TrafficReport { reporter, interval_ms, regions, calls, servers, left_out, incomplete } =
            traffic;
        let sender = Some(v1::SignalSender { reporter, interval_ms, regions });
        Self { sender, calls, servers, left_out, incomplete, ..Self::default() }
    }
}

impl From<v1::ReportUsageRequest> for v1::ReportSignalsRequest {
    fn from(report: v1::ReportUsageRequest) -> Self {
        let rates = report.traffic.map(Self::from).unwrap_or_default();
        Self { usages: report.usages, ..rates }
    }
}

impl From<v1::ReportSignalsRequest> for v1::ReportUsageRequest {
    fn from(report: v1::ReportSignalsRequest) -> Self {
        // The previous release knows neither processed calls nor counts.
        let v1::ReportSignalsRequest { sender, usages, calls, servers, left_out, incomplete, .. } = report;
        let traffic = sender.map(|v1::SignalSender { reporter, interval_ms, regions }| v1::TrafficReport {
            reporter,
            interval_ms,
            regions,
            calls,
            servers,
            left_out,
            incomplete,
        });
        Self { usages, traffic }
    }
}

impl From<v1::ReportSignalsResponse> for v1::ReportUsageResponse {
    fn from(response: v1::ReportSignalsResponse) -> Self {
        let v1::ReportSignalsResponse { dropped_minutes, next_report_ms, watched, refused_rows: _ } =
            response;
        Self { dropped: dropped_minutes, next_traffic_ms: next_report_ms, watched }
    }
}

impl From<v1::ReportUsageResponse> for v1::ReportSignalsResponse {
    fn from(response: v1::ReportUsageResponse) -> Self {
        let v1::ReportUsageResponse { dropped, next_traffic_ms, watched } = response;
        Self { dropped_minutes: dropped, next_report_ms: next_traffic_ms, watched, refused_rows: 0 }
    }
}
