//! The page `/metrics` of every process: its own metrics, those of the process and of the build, in the format that the reader accepts.
//!
//! Prometheus text 0.0.4 is made from OpenMetrics text, line by line. A second encoder was rejected: both formats would have to be
//! kept equal for every type of metric.

mod negotiation;
mod process;
mod text;

use http::{HeaderMap, Response, header::CONTENT_TYPE};
use prometheus_client::{encoding::text::encode, metrics::info::Info, registry::Registry};

/// The content types of the formats.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The page of one kind of process, such as `agent`, for a request with these headers. `register` adds its metrics, whose names
/// begin with `fairmesh_`.
pub(crate) fn page(
    process: &'static str,
    headers: &HeaderMap,
    register: impl FnOnce(&mut Registry),
) -> Response<String> {
    let mut all = Registry::default();
    process::register(all.sub_registry_with_prefix("process"));
    let mesh = all.sub_registry_with_prefix("fairmesh");
    let build = Info::new(vec![("process", process), ("version", env!("CARGO_PKG_VERSION"))]);
    mesh.register("build", "Version of this process", build);
    register(mesh);
    let mut open_metrics = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut open_metrics, &all);
    let (form, text) = match negotiation::accepts_open_metrics(headers) {
        true => (OPEN_METRICS, open_metrics),
        false => (PROMETHEUS_TEXT, text::prometheus(&open_metrics)),
    };
    let mut response = Response::new(text);
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(form));
    response
}

#[cfg(test)]
mod tests {
    use http::header::ACCEPT;
    use prometheus_client::metrics::counter::ConstCounter;

    use super::*;

    fn read(accept: Option<&'static str>) -> (String, String) {
        let accept = accept.map(|accept| (ACCEPT, http::HeaderValue::from_static(accept)));
        let response = page("agent", &accept.into_iter().collect(), |metrics| {
            let agent = metrics.sub_registry_with_prefix("agent");
            agent.register("deltas", "Deltas received", ConstCounter::new(7_u64));
        });
        let form = response.headers()[CONTENT_TYPE].to_str().unwrap().to_owned();
        (form, response.into_body())
    }

    #[test]
    fn metrics_default_to_prometheus_text() {
        for accept in [None, Some("text/plain"), Some("*/*"), Some("text/html,*/*;q=0.8")] {
            let (form, text) = read(accept);
            assert_eq!(form, PROMETHEUS_TEXT, "{accept:?}");
            assert!(
                text.contains("# TYPE fairmesh_agent_deltas_total counter\nfairmesh_agent_deltas_total 7\n")
            );
            assert!(text.contains(
                "# TYPE fairmesh_build_info gauge\nfairmesh_build_info{process=\"agent\",version="
            ));
            assert!(!text.contains("# EOF") && !text.contains("# UNIT"), "{text}");
        }
    }

    #[test]
    fn openmetrics_is_served_on_request_with_process_metrics() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
            application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        let (form, text) = read(Some(prometheus));
        assert_eq!(form, OPEN_METRICS);
        assert!(
            text.ends_with("# EOF\n") && text.contains("# TYPE fairmesh_agent_deltas counter\n"),
            "{text}"
        );
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("no {name} in {text}")).parse::<f64>().unwrap()
        };
        assert!(value("process_resident_memory_bytes") > 1e5 && value("process_open_fds") >= 3.0);
        assert!(value("process_virtual_memory_bytes") > value("process_resident_memory_bytes"));
        assert!(value("process_max_fds") >= value("process_open_fds") && value("process_threads") >= 1.0);
        assert!(value("process_cpu_seconds_total") > 0.0 && value("process_start_time_seconds") > 1.5e9);
    }
}
