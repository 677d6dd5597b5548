use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};

use fairmesh_test_support::fairmesh;

use super::{PATIENCE, Process, Program, Run, World, free_port, openmetrics, run, until};

/// A proxy process.
pub(crate) struct Proxy {
    pub(crate) process: Process,
    /// Address of the listener that selects services by host.
    pub(crate) by_host: String,
    /// Address of the listener for `shop/one`.
    pub(crate) for_one: String,
    pub(crate) admin: String,
}

impl Proxy {
    pub(crate) async fn start(world: &World) -> Self {
        Self::with(world, "").await
    }

    /// Starts a proxy with further arguments.
    pub(crate) async fn with(world: &World, arguments: &str) -> Self {
        Self::run(world, arguments, Program::fairmesh).await
    }

    /// Starts the proxy with a command built by the caller.
    pub(crate) async fn run(
        world: &World,
        arguments: &str,
        program: impl FnOnce(std::path::PathBuf, &str) -> Program,
    ) -> Self {
        let [by_host, for_one, admin] = [(); 3].map(|()| format!("127.0.0.1:{}", free_port()));
        let log = if arguments.contains("--access-log") { "" } else { "--access-log json " };
        let idle = if arguments.contains("--idle-timeout") { "" } else { "--idle-timeout 2s " };
        let args = format!(
            "proxy --agent {} --listen {by_host} --listen {for_one}=shop/one --admin {admin} --client-id proxy \
             {log}{idle}{arguments}",
            world.agent_address()
        );
        let process = Process::start(program(world.path("proxy.log"), args.trim()));
        let proxy = Self { process, by_host, for_one, admin };
        until("the proxy is ready", async || proxy.is_ready().await).await;
        proxy
    }

    async fn is_ready(&self) -> bool {
        let asked = Client::builder(TokioExecutor::new()).build_http::<Empty<bytes::Bytes>>();
        let answer = asked.get(format!("http://{}/readyz", self.admin).parse().unwrap()).await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    /// Runs `fairmesh proxy status` against this admin port.
    pub(crate) async fn status(admin: &str, args: &[&str]) -> Run {
        let command = fairmesh(&[&["proxy", "status", "--admin", admin], args].concat());
        run(command, "", PATIENCE).await
    }

    /// Runs `fairmesh proxy endpoints` with JSON output.
    pub(crate) async fn endpoints(admin: &str, service: &str) -> Run {
        let command = fairmesh(&["proxy", "endpoints", service, "--json", "--admin", admin]);
        run(command, "", PATIENCE).await
    }

    pub(crate) async fn page(&self, path: &str) -> String {
        self.get(path, "*/*").await
    }

    /// All metrics of the proxy, from OpenMetrics.
    pub(crate) async fn samples(&self) -> openmetrics::Samples {
        openmetrics::read(&self.get("/metrics", "application/openmetrics-text").await)
    }

    async fn get(&self, path: &str, accept: &str) -> String {
        let asked = Client::builder(TokioExecutor::new()).build_http::<Empty<bytes::Bytes>>();
        let request = Request::get(format!("http://{}{path}", self.admin)).header("accept", accept);
        let answer = asked.request(request.body(Empty::new()).unwrap()).await.unwrap();
        String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    /// Sum over all series of the metric `fairmesh_proxy_NAME`.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let page = self.page("/metrics").await;
        assert!(page.contains(&format!("# TYPE fairmesh_proxy_{name} ")), "no {name} in {page}");
        let value = |line: &str| {
            let rest = line.strip_prefix("fairmesh_proxy_")?.strip_prefix(name)?;
            let value =
                rest.strip_prefix(' ').or_else(|| Some(rest.strip_prefix('{')?.rsplit_once("} ")?.1))?;
            Some(value.parse::<f64>().unwrap())
        };
        page.lines().filter_map(value).sum()
    }

    /// Waits until a metric has at least this value. The event loop may count the end of a connection after the program
    /// has seen that end.
    pub(crate) async fn reaches(&self, name: &str, least: f64) {
        until(&format!("{name} is {least} at least"), async || self.metric(name).await >= least).await;
    }

    /// Waits until a metric equals this value.
    pub(crate) async fn counts(&self, name: &str, value: f64) {
        until(&format!("{name} is {value}"), async || self.metric(name).await == value).await;
    }
}
