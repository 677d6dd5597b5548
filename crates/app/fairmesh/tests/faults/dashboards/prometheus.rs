//! A real Prometheus that scrapes the processes of a mesh.

use std::{
    ffi::OsString,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use http::{Request, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::Value;

use crate::harness::{Process, Program, free_port};

/// Format in which Prometheus ingests histograms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Histograms {
    Native,
    Classic,
}

/// A Prometheus process.
pub(super) struct Prometheus {
    pub(super) histograms: Histograms,
    address: String,
    _process: Process,
}

impl Prometheus {
    /// Starts Prometheus, which scrapes these addresses and evaluates these rule files twice a second. `folder` must be
    /// used by nothing else.
    pub(super) fn start(
        binary: PathBuf,
        folder: &Path,
        (targets, rules): (&[String], &[PathBuf]),
        histograms: Histograms,
    ) -> Self {
        fs::create_dir(folder).unwrap();
        let config = folder.join("prometheus.yaml");
        let text = format!(
            "global: {{scrape_interval: 500ms, evaluation_interval: 500ms}}\nrule_files: {rules:?}\n\
             scrape_configs:\n- job_name: fairmesh\n  static_configs: [{{targets: {targets:?}}}]\n"
        );
        fs::write(&config, text).unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let mut args = vec![
            format!("--config.file={}", config.display()),
            format!("--storage.tsdb.path={}", folder.join("tsdb").display()),
            format!("--web.listen-address={address}"),
        ];
        args.extend(
            (histograms == Histograms::Native).then(|| "--enable-feature=native-histograms".to_owned()),
        );
        let args = args.into_iter().map(OsString::from).collect();
        let log = folder.join("prometheus.log");
        Self { histograms, address, _process: Process::start(Program { binary, args, env: Vec::new(), log }) }
    }

    /// Series of an expression at present.
    pub(super) async fn query(&self, expression: &str) -> Vec<Value> {
        let mut form = "query=".to_owned();
        for byte in expression.bytes() {
            let _ = write!(form, "%{byte:02X}");
        }
        let answer = self.ask("query", Some(form)).await;
        if let Some(error) = answer["error"].as_str() {
            panic!("{error}: {expression}");
        }
        // A scalar result is one value instead of a list of series.
        answer["data"]["result"].as_array().cloned().unwrap_or_default()
    }

    /// Names of the firing alerts, each with the label of its subject if there is one.
    pub(super) async fn firing(&self) -> Vec<(String, String)> {
        let answer = self.ask("alerts", None).await;
        let alerts = answer["data"]["alerts"].as_array().cloned().unwrap_or_default();
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing").map(|alert| &alert["labels"]);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        firing.map(|labels| (text(&labels["alertname"]), text(&labels["severity"]))).collect()
    }

    /// Response of the HTTP API; `null` while Prometheus does not respond.
    async fn ask(&self, what: &str, form: Option<String>) -> Value {
        let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
        let method = if form.is_some() { "POST" } else { "GET" };
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}/api/v1/{what}", self.address))
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Full::new(Bytes::from(form.unwrap_or_default())));
        let Ok(answer) = client.request(request.unwrap()).await else { return Value::Null };
        let Ok(body) = answer.into_body().collect().await else { return Value::Null };
        serde_json::from_slice(&body.to_bytes()).unwrap_or_default()
    }
}
